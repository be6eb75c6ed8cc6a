"""Each command's own part: what it refuses, what it prints, which code it gives. The engines are stand-ins."""

from __future__ import annotations

import json
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from traincheck.cli.commands import doctor, published
from traincheck.cli.console import Progress, amount, columns, exit_code, size
from traincheck.cli.live_check import follow
from traincheck.cli.main import main
from traincheck.config import load
from traincheck.errors import RunFolderEmpty
from traincheck.invariants.book import Book, write_book
from traincheck.reporting.json_report import read_json, write_json
from traincheck.trace.folder import RunFolder
from traincheck.trace.run_notes import Manifest
from traincheck.vocab.finding import Counts, Finding, Report, Site
from traincheck.vocab.invariant import Invariant, Precondition, Support
from traincheck.vocab.occasion import Property, Subject


def invariant(
    api: str = "torch.optim.Optimizer.step", severity: str = "error", relation: str = "EventContain"
) -> Invariant:
    return Invariant(
        relation,
        Subject(api),
        Property("contains change", "parameter.data", "changes"),
        Precondition(),
        Support(120, 60, 3, 2),
        0.99,
        severity,
        "general",
        f"Every call of {api} changes a parameter",
        ("cnn.py",),
    )


def finding(severity: str) -> Finding:
    site = Site("train.py", 3, "main")
    return Finding(
        severity,
        1,
        0,
        f"nothing changes ({severity})",
        "stale",
        site,
        ("w",),
        "change",
        "none",
        ("record",),
        (severity,),
        2,
        2,
    )


def report(*severities: str) -> Report:
    return Report(tuple(map(finding, severities)), Counts(invariants=2, passed=1, steps=9))


@dataclass(frozen=True)
class Checked:
    report: Report
    verdicts: tuple[tuple[Invariant, str], ...] = ((invariant(), "passed"),)


@pytest.fixture(autouse=True)
def quiet_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("TRAINCHECK_BOOK", "TRAINCHECK_FAIL_ON", "TRAINCHECK_SESSION"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def book(tmp_path: Path) -> Path:
    path = tmp_path / "good.jsonl"
    write_book(Book((invariant(), invariant("torch.nn.Module.eval", "notice", "APISequence"))), path)
    return path


StandIn = Callable[..., None]


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    """Puts a module of the given functions in the place of a stage."""

    def put(name: str, **functions: object) -> None:
        module = types.ModuleType(name)
        vars(module).update(functions)
        monkeypatch.setitem(sys.modules, name, module)

    return put


def test_show_prints_and_filters(book: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(book)]) == 0
    stdout = capsys.readouterr().out
    assert "torch.nn.Module.eval" in stdout and "2 invariants, 1 error, 1 notice" in stdout
    for words in (["--filter", "MODULE.eval"], ["--filter", "notice"], ["--filter", "apisequence"]):
        assert main(["show", str(book), *words, "--json"]) == 0
        listed = json.loads(capsys.readouterr().out)
        assert [entry["relation"] for entry in listed] == ["APISequence"]
    assert main(["show", str(book), "--filter", "notice error", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []


def test_show_refuses_a_file_without_a_book(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x.txt").write_text("hello\n")
    assert main(["show", "x.txt"]) == 2
    assert main(["show", "absent.jsonl"]) == 2
    assert "[book-not-found]" in capsys.readouterr().err


def test_explain_an_invariant(book: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = invariant().id
    assert main(["explain", str(book), name[:6]]) == 0
    stdout = capsys.readouterr().out
    assert name in stdout and "always" in stdout and "cnn.py" in stdout
    assert main(["explain", str(book), "zzz"]) == 2
    assert main(["explain", str(book), ""]) == 2
    assert main(["explain", str(book)]) == 2


def learned(wrote: list[Path] | None = None) -> object:
    def write(path: Path) -> None:
        (wrote if wrote is not None else []).append(path)

    journal = types.SimpleNamespace(write=write)
    return types.SimpleNamespace(
        book=Book((invariant(),)), journal=journal, seconds=1.25, tallies=(), remarks=("a remark",)
    )


def test_infer_writes_book_and_journal(tmp_path: Path, stand_in: StandIn, capsys: pytest.CaptureFixture[str]) -> None:
    wrote: list[Path] = []

    def learn(folders: list[Path], progress: Callable[[str, int, int], None], jobs: int, cluster: object) -> object:
        progress("reading", 1, 2)
        assert folders == [Path("runs/a"), Path("runs/b")] and jobs == 1 and cluster is None
        return learned(wrote)

    stand_in("traincheck.inference.learn", learn=learn)
    assert main(["infer", "runs/a", "runs/b", "-o", "new.jsonl"]) == 0
    stderr = capsys.readouterr().err
    assert "reading 1/2" in stderr and "1 invariant in new.jsonl (1.2 s)" in stderr
    assert wrote == [Path("new.jsonl.journal.jsonl")]
    assert main(["infer", "runs/a", "runs/b", "-o", "new.jsonl", "--journal", "why"]) == 0  # a book is replaced
    (tmp_path / "train.py").write_text("print()\n")
    assert main(["infer", "runs/a", "-o", "train.py"]) == 2
    assert "[other-file]" in capsys.readouterr().err
    assert (tmp_path / "train.py").read_text() == "print()\n"
    assert main(["infer", "runs/a", "-o", str(tmp_path)]) == 2


@pytest.mark.parametrize(
    ("severities", "fail_on", "code"),
    [
        ((), "error", 0),
        (("notice",), "error", 0),
        (("notice",), "notice", 3),
        (("error",), "notice", 3),
        (("error", "notice"), "error", 3),
        (("error",), "never", 0),
    ],
)
def test_exit_codes_of_findings(severities: tuple[str, ...], fail_on: str, code: int) -> None:
    assert exit_code(report(*severities), fail_on) == code


def test_check_reports_everywhere(
    tmp_path: Path, book: Path, stand_in: StandIn, capsys: pytest.CaptureFixture[str]
) -> None:
    stand_in("traincheck.checking.offline", check_folder=lambda folder, book, progress=None: Checked(report("error")))
    for run in ("runs/a", "runs/b"):
        RunFolder.create(run, Manifest(script="train.py"))
    words = ["check", "runs/a", "--book", str(book), "--report", "json=out/r.json", "--report", "html=out/r.html"]
    assert main(words) == 3
    assert "nothing changes" in capsys.readouterr().out
    assert read_json(tmp_path / "out" / "r.json").verdict == "errors"
    assert "<html" in (tmp_path / "out" / "r.html").read_text()
    assert main(["check", "runs/a", "runs/b", "-b", str(book), "--fail-on", "never"]) == 0
    assert main(["check", "runs/a", "runs/b", "-b", str(book), "--report", "json=x.json"]) == 2
    assert "--report" in capsys.readouterr().err
    assert main(["check", "runs/a", "-b", str(book), "--json", "--fail-on", "never"]) == 0
    assert json.loads(capsys.readouterr().out)["verdict"] == "errors"


def test_check_and_run_need_a_book_or_packs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "train.py").write_text("open('started', 'w')\n")
    for words in (["check", "runs/a", "--packs", "none"], ["run", "--packs", "none", "train.py"]):
        assert main(words) == 2
        assert "[no-book]" in capsys.readouterr().err
    assert main(["run", "--book", "absent.jsonl", "train.py"]) == 2
    assert main(["run", "--book", "train.py", "train.py"]) == 2
    assert not (tmp_path / "started").exists() and not (tmp_path / "traincheck-runs").exists()


def test_a_missing_program_is_reported(book: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["collect"], ["run", "-b", str(book)], ["collect", "--"], ["collect", "-m"]):
        assert main(words) == 2
        assert "[no-target]" in capsys.readouterr().err
    assert main(["collect", "absent.py"]) == 2


def test_a_run_is_followed_to_its_end(
    tmp_path: Path, book: Path, stand_in: StandIn, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each finding is printed once, when it first appears. The command waits for an empty folder."""
    folder = RunFolder.create(tmp_path / "run", Manifest())
    looks = iter([RunFolderEmpty("run", "not yet"), report("notice"), report("notice", "error")])

    def check_folder(path: Path, book: Book, progress: object = None) -> Checked:
        look = next(looks)
        if isinstance(look, Exception):
            raise look
        return Checked(look)

    waited: list[float] = []

    def sleep(seconds: float) -> None:
        waited.append(seconds)
        if len(waited) == 2:
            folder.update(ended="now")

    stand_in("traincheck.checking.offline", check_folder=check_folder)
    config = load({"books": (str(book),)}, {}, tmp_path)
    assert follow(folder.path, config, 3.0, tmp_path / "out", sleep) == 3
    assert waited == [3.0, 3.0]
    stderr = capsys.readouterr().err
    assert stderr.count("TrainCheck NOTICE") == 1 and stderr.count("TrainCheck ERROR") == 1
    assert read_json(tmp_path / "out" / "report.json").verdict == "errors"


def test_report_shows_a_finished_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "absent"]) == 2
    (tmp_path / "one").mkdir()
    assert main(["report", "one"]) == 2
    assert "[report-not-found]" in capsys.readouterr().err
    write_json(report("notice"), tmp_path / "one" / "report.json")
    assert main(["report", "one", "--fail-on", "notice", "-o", "again.html"]) == 3
    assert "nothing changes" in capsys.readouterr().out
    assert (tmp_path / "again.html").exists()


def test_doctor_prints_text_and_json(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    answer = {
        "attached": True,
        "accelerator": "",
        "sources": [["optimizers", True, ""], ["cuda", False, "none"]],
        "why": "",
    }
    monkeypatch.setattr(doctor, "run_probe", lambda: answer)
    assert main(["doctor"]) == 0
    stdout = capsys.readouterr().out
    assert "optimizers" in stdout and "none" in stdout and "pyarrow" in stdout
    assert main(["doctor", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["sources"][1] == {"name": "cuda", "available": False, "reason": "none"}
    monkeypatch.setattr(doctor, "run_probe", lambda: {**answer, "sources": [], "why": "no torch"})
    assert main(["doctor"]) == 1
    assert "no torch" in capsys.readouterr().out


def test_published_infer_and_check(
    tmp_path: Path, book: Path, stand_in: StandIn, capsys: pytest.CaptureFixture[str]
) -> None:
    stand_in("traincheck.inference.learn", learn=lambda folders, progress, jobs, cluster: learned())
    assert published.infer(["-f", "a", "b", "-o", "x.jsonl", "--disable-relation", "Y", "Z", "-b", "polars"]) == 0
    assert "ignored, as no longer needed: --disable-relation, -b" in capsys.readouterr().err
    stand_in("traincheck.checking.offline", check_folder=lambda folder, book, progress=None: Checked(report("error")))
    for run in ("a", "c/b"):
        RunFolder.create(run, Manifest(script="train.py"))
    assert published.check(["-f", "a", "-i", str(book), "-o", "out"]) == 3
    assert read_json(tmp_path / "out" / "report.json").verdict == "errors"
    assert published.check(["-f", "a", "c/b", "-i", str(book), "-o", "both"]) == 3
    assert (tmp_path / "both" / "b" / "report.html").exists()
    assert published.onlinecheck(["-f", "a", "-i", str(book), "--once"]) == 3
    with_unknown = ["-f", "a", "-i", str(book), "--no-such-option"]
    assert published.check(with_unknown) == 2


def test_published_collect_translates(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    seen: list[tuple[Any, ...]] = []
    monkeypatch.setattr("traincheck.cli.commands.collect.collect", lambda *args: seen.append(args) or 0)
    monkeypatch.setattr("traincheck.cli.commands.run.run", lambda *args: seen.append(args) or 0)
    words = "--pyscript t.py --models-to-track model net --output-dir out -i a.jsonl b.jsonl --sampling-interval 5"
    assert published.collect(words.split()) == 0
    target, config, folder = seen[0]
    assert (target.words, folder) == (("t.py",), Path("out"))
    assert (config.books, config.fail_on) == (("a.jsonl", "b.jsonl"), "never")
    assert "--models-to-track, --sampling-interval" in capsys.readouterr().err
    assert published.collect(["-p", "t.py", "-s", "job.sh"]) == 0
    assert seen[1][0].words == ("bash", "job.sh")
    assert published.collect([]) == 2


def test_numbers_are_formatted() -> None:
    assert [size(number) for number in (12, 1200, 3_400_000, 5e12)] == ["12 B", "1.2 kB", "3.4 MB", "5000.0 GB"]
    assert [amount(1, "step"), amount(1234, "step")] == ["1 step", "1,234 steps"]
    assert columns([("a", "bb"), ("ccc", "d")]) == ["  a    bb", "  ccc  d"]
    assert columns([]) == []


def test_progress_prints_plain_lines_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress() as progress:
        for done in range(1, 101):
            progress("reading", done, 100)
        progress("judging", 0, 0)
    assert capsys.readouterr().err.splitlines() == [
        "traincheck: reading 1/100",
        "traincheck: reading 100/100",
        "traincheck: judging",
    ]
