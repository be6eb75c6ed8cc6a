"""Accepting runs: what the library of a project holds, what is refused, and what later checks make of it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from recorded_runs import STEP, training, write_run
from traincheck.cli.main import main
from traincheck.errors import LibraryUnreadable
from traincheck.inference.accept_run import MAX_RUNS, accept
from traincheck.invariants.book import read_book
from traincheck.invariants.library import BOOK, FOLDER, RECORD, TALLIES, find, library_path, read_record
from traincheck.testing.readable_traces import from_text
from traincheck.vocab.invariant import ERROR


def good(path: Path, steps: int = 12) -> Path:
    """A recording of a run that came to its end."""
    write_run(path, "train.py", training(steps))
    return ended(path)


def odd(path: Path, script: str = "train.py") -> Path:
    """One of a run that clears no gradient."""
    step = STEP.replace("    change Net.w parameter.grad some -> none changed owner=SGD\n", "")
    windows = from_text(step.replace("parameter.grad none -> some", "parameter.grad some -> some") * 12)
    write_run(path, script, [replace(window, step=number) for number, window in enumerate(windows, start=1)])
    return ended(path)


def ended(path: Path, code: int = 0) -> Path:
    """Its program ended with this exit code."""
    manifest = json.loads((path / "run.json").read_text())
    (path / "run.json").write_text(json.dumps({**manifest, "exit_code": code, "ended": "2026-01-02T04:00:00+00:00"}))
    return path


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with recordings of four runs of its program."""
    (tmp_path / "project" / "pkg").mkdir(parents=True)
    home = tmp_path / "project"
    (home / ".git").mkdir()
    for name in "abcd":
        good(home / "runs" / name, 12 + ord(name) % 4)
    monkeypatch.chdir(home / "pkg")
    return home


def runs(project: Path, names: str) -> list[str]:
    return [str(project / "runs" / name) for name in names]


def test_three_accepted_runs_make_errors_of_their_rules(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status"]) == 0 and "no accepted runs" in capsys.readouterr().out
    assert main(["accept", *runs(project, "a"), "--reason", "as  published"]) == 0
    library = project / FOLDER
    assert {path.name for path in library.iterdir()} == {BOOK, TALLIES, RECORD}
    assert not any(rule.severity == ERROR for rule in read_book(library / BOOK).invariants)
    assert main(["accept", *runs(project, "bc")]) == 0
    captured = capsys.readouterr()
    assert "accepted train.py" in captured.out and "0 removed" in captured.out
    assert any(rule.severity == ERROR for rule in read_book(library / BOOK).invariants)
    assert main(["status"]) == 0
    stdout = capsys.readouterr().out
    assert (
        "3 accepted runs" in stdout
        and "train.py  3" in stdout
        and "not covered by any accepted run: evaluation, autocast" in stdout
    )
    assert main(["status", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert [run["reason"] for run in data["runs"]].count("as published") == 1 and data["errors"] > 0
    assert len(data["last"]["runs"]) == 2 and "several ranks" in data["never_seen"]


def test_checks_use_the_library_with_the_packs(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["accept", *runs(project, "abc")]) == 0
    capsys.readouterr()
    assert main(["check", str(odd(project / "odd")), "--packs", "none"]) == 3
    captured = capsys.readouterr()
    assert "the rules of 3 accepted runs" in captured.err and "not cleared" in captured.out
    assert main(["check", *runs(project, "d")]) == 0
    captured = capsys.readouterr()
    assert "the rules of 3 accepted runs" in captured.err and "of the packs traincheck" in captured.err
    assert main(["check", *runs(project, "d"), "--book", str(project / FOLDER / BOOK)]) == 0
    assert "accepted runs" not in capsys.readouterr().err


def test_runs_that_are_not_proven_good_are_refused(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["accept", *runs(project, "abc")]) == 0
    before = {path.name: path.read_bytes() for path in (project / FOLDER).iterdir()}
    piling, failed = odd(project / "odd"), ended(good(project / "failed"), 1)
    killed = write_run(project / "killed", "train.py", training(12))
    for words, slug in (
        (runs(project, "a"), "not accepted before"),
        ([str(piling)], "Gradients are not cleared"),
        ([str(killed)], "was killed"),
        ([str(failed)], "exit code 1"),
        ([str(project / "absent")], "run-folder-not-found"),
        ([*runs(project, "d"), "--library", str(project / "runs" / "d" / "run.json")], "this is a file"),
    ):
        capsys.readouterr()
        assert main(["accept", *words]) == 2, words
        assert slug in capsys.readouterr().err
    assert {path.name: path.read_bytes() for path in (project / FOLDER).iterdir()} == before
    assert main(["accept", str(piling), "--reason", "we accumulate"]) == 0
    captured = capsys.readouterr()
    assert "although: " in captured.err and "removed: " in captured.err
    assert main(["check", str(piling), "--packs", "none"]) == 0  # what is accepted is no error any more


def with_decay(path: Path, decay: float, clears: int = 20) -> Path:
    """A recording of a run with this weight decay, which clears the gradients in so many steps."""
    step = STEP + f"    reading hyperparameter.weight_decay SGD.param_groups[0] {decay}\n"
    piling = step.replace("    change Net.w parameter.grad some -> none changed owner=SGD\n", "")
    piling = piling.replace("parameter.grad none -> some", "parameter.grad some -> some")
    steps = 12 + len(path.name) % 4
    windows = from_text(step * min(clears, steps) + piling * (steps - clears))
    write_run(path, "train.py", [replace(window, step=number) for number, window in enumerate(windows, start=1)])
    return ended(path)


def test_status_shows_what_would_change(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["accept", *runs(project, "abc")]) == 0
    before = {path.name: path.read_bytes() for path in (project / FOLDER).iterdir()}
    capsys.readouterr()
    assert main(["status", str(odd(project / "odd"))]) == 0
    captured = capsys.readouterr()
    assert "would accept train.py" in captured.out and "although: " in captured.err and "removed: " in captured.err
    assert {path.name: path.read_bytes() for path in (project / FOLDER).iterdir()} == before


def test_a_run_is_accepted_in_part(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good_runs = [str(with_decay(project / name, 0.1)) for name in ("x", "xx", "xxx")]
    both = with_decay(project / "both", 0.2, clears=6)
    assert main(["accept", *good_runs]) == 0
    capsys.readouterr()
    assert main(["check", str(both), "--packs", "none", "--json"]) == 3
    found = {finding["diagnosis"] for finding in json.loads(capsys.readouterr().out)["findings"]}
    assert {"gradients-not-cleared", "setting-changed"} <= found
    assert main(["accept", str(both), "--only", "loss-scaled"]) == 2
    assert "a diagnosis of a finding in" in capsys.readouterr().err
    assert main(["accept", str(both), "--only", "gradients-not-cleared"]) == 0
    assert ", only gradients-not-cleared" in capsys.readouterr().out
    assert main(["check", str(both), "--packs", "none", "--json"]) in (0, 3)
    left = {finding["diagnosis"] for finding in json.loads(capsys.readouterr().out)["findings"]}
    assert "gradients-not-cleared" not in left and "setting-changed" in left
    assert main(["status"]) == 0
    stdout = capsys.readouterr().out
    assert "4 accepted runs" in stdout
    assert "(train.py, only gradients-not-cleared): only gradients-not-cleared" in stdout
    assert main(["accept", str(both), "--reason", "everything else too"]) == 0  # as a whole
    assert len(read_record(project / FOLDER).runs) == 4


@pytest.fixture
def packs_of_others(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Packs from three other programs, in use."""
    others = [write_run(project / "runs" / name, f"{name}.py", training(14)) for name in ("one", "two", "three")]
    assert main(["packs", "build", *map(str, others), "-o", str(project / "packs")]) == 0
    monkeypatch.setenv("TRAINCHECK_PACKS", str(project / "packs"))


@pytest.mark.usefixtures("packs_of_others")
def test_a_rule_of_packs_that_an_accepted_run_breaks_is_skipped_for_its_program(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    piling, again = odd(project / "odd"), odd(project / "again")
    for run in (piling, again):
        assert main(["check", str(run)]) == 3
    capsys.readouterr()
    assert main(["accept", str(piling)]) == 2
    assert main(["accept", str(piling), "--reason", "we accumulate"]) == 0
    assert "not checked any more, because accepted runs of train.py break it: error: " in capsys.readouterr().err
    assert main(["check", str(again)]) == 0
    assert main(["check", str(odd(project / "elsewhere", "elsewhere.py"))]) == 3  # packs still apply to other programs
    muted = [rule for rule in read_book(project / FOLDER / BOOK).invariants if rule.mute]
    assert muted and all(rule.origin == ("train.py",) for rule in muted)
    capsys.readouterr()
    assert main(["accept", *runs(project, "ab")]) == 0  # good runs do not outweigh one that breaks a rule
    assert "not checked any more" not in capsys.readouterr().err  # it was listed before
    assert main(["check", str(again)]) == 0


@pytest.mark.usefixtures("packs_of_others")
def test_a_rule_of_the_library_that_is_muted_now_is_listed(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["accept", *runs(project, "abc")]) == 0  # the library learns the same rules
    capsys.readouterr()
    assert main(["accept", str(odd(project / "odd")), "--reason", "we accumulate"]) == 0
    assert "not checked any more" in capsys.readouterr().err


def test_mutes_stay_and_old_runs_go(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["accept", *runs(project, "abc")]) == 0
    book = project / FOLDER / BOOK
    rule = next(rule for rule in read_book(book).invariants if rule.severity == ERROR)
    assert main(["mute", str(book), rule.id, "--reason", "on purpose"]) == 0
    more = [good(project / "more" / str(number), 20 + number) for number in range(MAX_RUNS)]
    done = accept(more, project / FOLDER)
    assert len(done.let_go) == 3 and len(read_record(project / FOLDER).runs) == MAX_RUNS
    kept = read_book(book).by_id(rule.id)
    assert kept is not None and kept.mute == "on purpose" and kept.support.runs == MAX_RUNS
    assert main(["status"]) == 0 and "1 muted" in capsys.readouterr().out


def test_the_library_belongs_to_the_project(project: Path, tmp_path: Path) -> None:
    assert library_path(project / "pkg") == project / FOLDER and find(project / "pkg") is None
    (tmp_path / FOLDER).mkdir()
    (tmp_path / FOLDER / RECORD).write_text("{}")
    assert find(project / "pkg") is None  # it lies outside the project
    (tmp_path / "loose").mkdir()
    assert library_path(tmp_path / "loose") == tmp_path / FOLDER


def test_a_damaged_library_is_reported_and_unchanged(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["accept", *runs(project, "ab")]) == 0
    record = project / FOLDER / RECORD
    good = record.read_text()
    for bad in ("<<<<<<< HEAD\n", '{"kind": "a diary"}', '{"format": 9}', '{"runs": 3}'):
        record.write_text(bad)
        for words in (["status"], ["accept", *runs(project, "c")], ["check", *runs(project, "d")]):
            assert main(words) == 2, (bad, words)
            assert "[library-unreadable]" in capsys.readouterr().err
        assert record.read_text() == bad
    document = json.loads(good)
    record.write_text(json.dumps({**document, "runs": document["runs"][:1]}))
    assert main(["status"]) == 2 and "other runs" in capsys.readouterr().err
    with pytest.raises(LibraryUnreadable):
        record.unlink()
        record.mkdir()
        read_record(project / FOLDER)
