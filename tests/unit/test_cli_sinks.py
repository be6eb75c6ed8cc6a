"""`--report`: what it refuses before anything is run, where documents go, and what becomes of a failure."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree as Tree

import pytest

from recorded_runs import training, write_run
from traincheck.cli.main import main
from traincheck.invariants.book import Book, write_book
from traincheck.reporting.json_report import read_json, write_json
from traincheck.vocab.finding import Report
from traincheck.vocab.invariant import Invariant


@pytest.fixture(autouse=True)
def project(
    folder: Path, some_report: Report, some_invariants: tuple[Invariant, ...], monkeypatch: pytest.MonkeyPatch
) -> Path:
    """A run with its report, two recordings and a book; not on GitHub."""
    for name in ("TRAINCHECK_REPORT", "GITHUB_STEP_SUMMARY", "GITHUB_WORKSPACE"):
        monkeypatch.delenv(name, raising=False)
    (folder / "run").mkdir()
    write_json(some_report, folder / "run" / "report.json")
    for name in ("one", "two"):
        write_run(folder / name, f"{name}.py", training(4))
    write_book(Book(some_invariants), folder / "good.jsonl")
    return folder


def test_each_format_writes_its_file(project: Path, some_report: Report) -> None:
    words = [word for name in ("json", "html", "junit", "sarif", "markdown") for word in ("--report", name)]
    assert main(["report", "run", *words]) == 3
    names = {"traincheck.json", "traincheck.html", "traincheck-junit.xml", "traincheck.sarif", "traincheck.md"}
    assert {path.name for path in project.glob("traincheck*")} == names
    assert read_json("traincheck.json") == some_report


def test_a_document_on_stdout_is_alone_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "run", "--report", "junit=-"]) == 3
    captured = capsys.readouterr()
    assert Tree.fromstring(captured.out.encode()).tag == "testsuites" and "1 error" in captured.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("pdf", "--report was given 'pdf'; expected FORMAT or FORMAT=FILE, with the format one of json, html, junit"),
        ("junit=.", "a file that can be written (Cannot write '.': it is a folder"),
        ("sarif=run/report.json/x", "is not a folder"),
        ("github=x.txt", "expected github, or github=- for standard output"),
    ],
)
@pytest.mark.parametrize("command", ["report run", "check one -b good.jsonl", "run -b good.jsonl train.py"])
def test_impossible_options_are_reported_first(
    command: str, words: str, message: str, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "train.py").write_text("open('started', 'w')\n")
    name, *rest = command.split()
    assert main([name, "--report", words, *rest]) == 2
    assert message in capsys.readouterr().err
    assert not (project / "started").exists() and not (project / "traincheck-runs").exists()


def test_two_formats_need_two_files(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "run", "--report", "junit=a", "--report", "sarif=a"]) == 2
    assert "--report was given 'sarif=a'; expected a different file for each format" in capsys.readouterr().err


def test_a_file_holds_the_report_of_one_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "one", "two", "-b", "good.jsonl", "--report", "junit"]) == 2
    assert "expected one RUN" in capsys.readouterr().err
    main(["check", "one", "two", "-b", "good.jsonl", "--report", "markdown=-"])
    assert capsys.readouterr().out.count("## TrainCheck:") == 2


def test_the_environment_and_the_project_file_set_sinks_too(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "pyproject.toml").write_text('[tool.traincheck]\nreport = ["markdown", "nonsense"]\n')
    assert main(["report", "run"]) == 2
    assert "pyproject.toml, [tool.traincheck] report was given 'nonsense'" in capsys.readouterr().err
    monkeypatch.setenv("TRAINCHECK_REPORT", "junit=a.xml,sarif")
    assert main(["report", "run"]) == 3
    assert (project / "a.xml").is_file() and (project / "traincheck.sarif").is_file()


def test_a_failing_sink_is_reported_and_others_are_written(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from traincheck.reporting.junit import JUnitSink

    def text(self: JUnitSink, report: Report) -> str:
        raise RuntimeError("a fault")

    monkeypatch.setattr(JUnitSink, "text", text)
    assert main(["report", "run", "--report", "junit", "--report", "sarif"]) == 1
    assert "[output]" in (stderr := capsys.readouterr().err) and "RuntimeError: a fault" in stderr
    assert (project / "traincheck.sarif").is_file() and not (project / "traincheck-junit.xml").exists()
