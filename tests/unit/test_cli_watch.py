"""`traincheck watch` as a command: folders that are none, options that are wrong, runs that are over."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from traincheck.checking.deployed_rules import RuleCounts
from traincheck.checking.engine import Outcome
from traincheck.checking.outcome_files import save_outcome
from traincheck.cli.main import main
from traincheck.config import load
from traincheck.errors import BadOption
from traincheck.invariants.book import Book, write_book
from traincheck.trace.folder import RunFolder
from traincheck.trace.run_notes import Manifest, ProcessNote
from traincheck.vocab.finding import Violation
from traincheck.vocab.invariant import Invariant

URL = "https://hooks.example.com/s3cret"


@pytest.fixture(autouse=True)
def quiet_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    for name in ("FAIL_ON", "WEBHOOK", "ALERT_COMMAND", "METRICS_PORT", "METRICS_TOKEN", "OTLP", "SILENT_AFTER"):
        monkeypatch.delenv(f"TRAINCHECK_{name}", raising=False)


@pytest.fixture
def ended(tmp_path: Path, new_invariant: Callable[..., Invariant]) -> RunFolder:
    """A run that has ended, with an error."""
    rule = new_invariant()
    run = RunFolder.create(tmp_path / "run", Manifest(mode="run", script="train.py"))
    write_book(Book((rule,)), run.path / "book.jsonl")
    run.write_note(ProcessNote(process=7, steps=9, windows=9, seconds=3.0, ended=True))
    outcome = Outcome(0, 7, {rule.id: RuleCounts(9, 5)}, windows=9, steps=9)
    outcome.violations.append(Violation(rule, 5, 0, 7, 5, "train", 1, None, "", ("w",)))
    save_outcome(run.path, outcome)
    run.update(ended="now", exit_code=0)
    return run


def test_a_run_that_has_ended_is_summed_up(ended: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["watch", "run"]) == 3
    stdout = capsys.readouterr().out
    assert "TrainCheck ERROR at step 5" in stdout and "the run ended with exit code 0" in stdout
    assert "1 error in 9 steps, first at step 5" in stdout
    assert main(["watch", "run", "--fail-on", "never"]) == 0


def test_json_is_one_object_a_line(ended: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["watch", "run", "--json"]) == 3
    objects = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [entry["kind"] for entry in objects] == ["finding", "status"]
    assert objects[1]["state"] == "ended" and objects[1]["errors"] == 1


def test_a_recorded_run_has_no_verdict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = RunFolder.create(tmp_path / "run", Manifest(mode="collect", script="train.py"))
    run.write_note(ProcessNote(process=7, steps=9, windows=9, ended=True))
    run.update(ended="now", exit_code=0)
    assert main(["watch", "run"]) == 0
    assert "step 9, recorded, not checked" in capsys.readouterr().out


def test_a_folder_without_a_run_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    for words, slug in (
        ([], "Missing argument 'RUN'"),
        (["file"], "[run-folder-not-found]"),
        (["."], "[run-folder-empty]"),
    ):
        assert main(["watch", *words]) == 2
        assert slug in capsys.readouterr().err


def test_a_garbled_book_is_reported(ended: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    (ended.path / "book.jsonl").write_text("{}\n")
    assert main(["watch", "run"]) == 2
    assert "[book-unrecognised]" in capsys.readouterr().err


WRONG = [
    (
        ["--alert", "hooks.example.com/s3cret"],
        "--alert was given '(a secret)'; expected an address that begins with",
    ),
    (["--alert", "no-such-program-anywhere"], "there is no program 'no-such-program-anywhere'"),
    (["--alert", "'"], "No closing quotation"),
    (["--fail-on", "warning"], "expected one of error, notice"),
    (["--heartbeat-timeout", "soon"], "expected a number of seconds above 0"),
    (["--heartbeat-timeout", "0"], "expected a number of seconds above 0"),
    (["--heartbeat-timeout", "inf"], "expected a number of seconds above 0"),
    (["--metrics", "http"], "with a port from 0 to 65535"),
    (["--metrics", "ftp://localhost"], "expected an address that begins with http"),
]


@pytest.mark.parametrize(("words", "message"), WRONG)
def test_options_that_cannot_be_obeyed(
    words: list[str], message: str, ended: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["watch", "run", *words]) == 2
    captured = capsys.readouterr()
    assert (
        "[bad-option]" in captured.err
        and message in captured.err
        and "s3cret" not in captured.err
        and captured.out == ""
    )


@pytest.mark.parametrize(("words", "message"), WRONG)
def test_a_run_is_not_started_with_options_that_cannot_be_obeyed(
    words: list[str],
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    new_invariant: Callable[..., Invariant],
) -> None:
    (tmp_path / "train.py").write_text("open('started', 'w')\n")
    write_book(Book((new_invariant(),)), tmp_path / "good.jsonl")
    assert main(["run", "-b", "good.jsonl", *words, "train.py"]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "started").exists() and not (tmp_path / "traincheck-runs").exists()


def test_secrets_are_never_shown(tmp_path: Path) -> None:
    for name in ("webhook", "metrics-token"):
        (tmp_path / "pyproject.toml").write_text(f'[tool.traincheck]\n{name} = ["{URL}"]\n')
        with pytest.raises(BadOption) as raised:
            load({}, {}, tmp_path)
        assert "s3cret" not in str(raised.value)
    (tmp_path / "pyproject.toml").write_text("[tool.traincheck]\nmetrics = 9100\nheartbeat-timeout = 90.5\n")
    config = load({}, {"TRAINCHECK_ALERT": URL}, tmp_path)
    assert (config.metrics, config.heartbeat_timeout, config.alerts) == (("9100",), "90.5", (URL,))
    assert "s3cret" not in repr(config.origins)
