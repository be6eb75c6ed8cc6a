"""`infer`, `merge` and `explain` over recordings, tally files and books: what they write, say and refuse."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from recorded_runs import training, write_run
from traincheck.cli import output_files
from traincheck.cli.main import main
from traincheck.errors import OutputError
from traincheck.invariants.book import read_book

CLEARED = "in a call of Optimizer.zero_grad, the parameter grad is cleared"


@pytest.fixture
def runs(folder: Path) -> list[str]:
    """Runs of three programs."""
    windows_of = {"a": training(8), "b": training(6, "Adam"), "c": training(5, "AdamW")}
    return [str(write_run(folder / name, f"{name}.py", windows)) for name, windows in windows_of.items()]


def files() -> dict[str, bytes]:
    """Return the files in the working directory."""
    return {path.name: path.read_bytes() for path in Path().iterdir() if path.is_file()}


def test_tally_then_infer_is_infer(runs: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["infer", *runs, "-o", "direct.jsonl", "--tally", "all.tally"]) == 0
    for name in runs:
        assert main(["infer", name, "--tally", f"{Path(name).name}.tally", "--jobs", "2"]) == 0
    stderr = capsys.readouterr().err
    assert "counts of 3 runs: all.tally (" in stderr and "counts of 1 run: c.tally" in stderr
    assert main(["infer", "c.tally", "a.tally", "b.tally", "-o", "later.jsonl"]) == 0
    assert main(["merge", "b.tally", "c.tally", "a.tally", "-o", "merged.tally"]) == 0
    assert main(["infer", "merged.tally", "-o", "merged.jsonl", "--journal", "why.jsonl"]) == 0
    assert Path("direct.jsonl").read_bytes() == Path("later.jsonl").read_bytes() == Path("merged.jsonl").read_bytes()
    assert Path("direct.jsonl.journal.jsonl").read_bytes() == Path("why.jsonl").read_bytes()
    assert Path("merged.tally").read_bytes() == Path("all.tally").read_bytes()
    assert not Path("c.tally.journal.jsonl").exists()


@pytest.mark.parametrize(
    ("words", "slug", "names"),
    [
        (["RUN"], "bad-option", "-o BOOK"),
        (["RUN", "--tally", "t", "--journal", "j"], "bad-option", "--journal"),
        (["RUN", "-o", "x", "--jobs", "0"], "bad-option", "--jobs"),
        (["RUN", "-o", "x", "-j", "-1"], "bad-option", "--jobs"),
        (["RUN", "-o", "x", "--ray", "auto", "-j", "0"], "bad-option", "--jobs"),
        (["RUN", "-o", "x", "--ray", "10.0.0.1:6379", "-j", "2"], "bad-option", "--ray"),
        (["gopher://RUN", "-o", "x"], "bad-option", "gopher://RUN"),
        (["RUN", "-o", "train.py"], "other-file", "train.py"),
        (["RUN", "--tally", "train.py"], "other-file", "--tally"),
        (["RUN", "--tally", "a"], "other-file", "--tally"),
        (["RUN", "-o", "x", "--journal", "train.py"], "other-file", "--journal"),
        (["RUN", "-o", "x", "--journal", "a"], "other-file", "--journal"),
        (["RUN", "absent", "-o", "x"], "run-folder-not-found", "absent"),
        (["train.py", "-o", "x"], "tally-unreadable", "train.py"),
    ],
)
def test_infer_refuses_before_it_reads(
    words: list[str], slug: str, names: str, runs: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    Path("train.py").write_text("print()\n")
    before = sorted(Path().iterdir())
    assert main(["infer", *(runs[0] if word == "RUN" else word for word in words)]) == 2
    stderr = capsys.readouterr().err
    assert f"[{slug}]" in stderr and names in stderr and "reading" not in stderr
    assert sorted(Path().iterdir()) == before and Path("train.py").read_text() == "print()\n"


def test_ctrl_c_leaves_existing_files(runs: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(["infer", runs[0], "-o", "good.jsonl", "--tally", "t"]) == 0
    before = files()

    def interrupt(path: Path, data: bytes) -> int:
        with path.open("wb") as file:
            file.write(data[:10])
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "write_bytes", interrupt)
    assert main(["infer", *runs, "-o", "good.jsonl", "--tally", "t"]) == 130
    assert files() == before


def test_mutes_outlive_the_book(runs: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["infer", *runs, "-o", "good.jsonl"]) == 0
    general = next(rule for rule in read_book("good.jsonl").invariants if rule.sentence == CLEARED)
    own = next(rule for rule in read_book("good.jsonl").invariants if len(rule.origin) == 3 and rule is not general)
    assert main(["mute", "good.jsonl", general.id, own.id, "--reason", "so it is meant"]) == 0
    assert main(["infer", *runs[:2], "-o", "good.jsonl"]) == 0
    stderr = capsys.readouterr().err
    kept = {rule.id: rule.mute for rule in read_book("good.jsonl").invariants if rule.mute}
    assert kept[general.id] == "so it is meant"
    assert f"{len(kept)} mute" in stderr and general.id in stderr
    Path("good.jsonl").unlink()
    assert main(["infer", *runs, "-o", "good.jsonl"]) == 0
    assert not any(rule.mute for rule in read_book("good.jsonl").invariants)


def test_a_muted_rule_that_disappears_is_reported(runs: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    by_hand = [replace(window, calls=window.calls[1:], changes=window.changes[1:]) for window in training(8)]
    other = write_run(Path("other"), "other.py", by_hand)
    assert main(["infer", *runs, "-o", "good.jsonl"]) == 0
    rule = next(rule for rule in read_book("good.jsonl").invariants if rule.sentence == CLEARED)
    assert main(["mute", "good.jsonl", rule.id, "--reason", "so it is meant"]) == 0
    assert main(["infer", str(other), "-o", "good.jsonl"]) == 0
    stderr = capsys.readouterr().err
    assert f"the muted {rule.id} ({CLEARED}) is not in the new book; its reason was: so it is meant" in stderr


def test_a_damaged_book_is_moved_away(runs: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["infer", *runs, "-o", "good.jsonl"]) == 0
    data = Path("good.jsonl").read_bytes()
    for number, name in enumerate(("good.jsonl.old", "good.jsonl.old1")):
        Path("good.jsonl").write_bytes(data[: -20 - number])
        assert main(["infer", *runs, "-o", "good.jsonl"]) == 0
        assert name in capsys.readouterr().err
        assert Path(name).read_bytes() == data[: -20 - number] and Path("good.jsonl").read_bytes() == data


def test_a_book_that_cannot_be_moved_is_not_replaced(runs: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(["infer", *runs, "-o", "good.jsonl"]) == 0
    book = read_book("good.jsonl")
    Path("good.jsonl").write_bytes(Path("good.jsonl").read_bytes()[:-20])

    def refuse(path: Path, other: Path) -> None:
        raise OSError(13, "Permission denied")

    monkeypatch.setattr(Path, "rename", refuse)
    with pytest.raises(OutputError, match=r"good\.jsonl\.old"):
        output_files.replace_book(book, Path("good.jsonl"))


def test_books_are_merged(runs: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    for name in runs:
        assert main(["infer", name, "-o", f"{Path(name).name}.jsonl"]) == 0
    assert main(["merge", "a.jsonl", "b.jsonl", "-o", "both.jsonl"]) == 0
    ids = {rule.id for name in ("a.jsonl", "b.jsonl") for rule in read_book(name).invariants}
    both = read_book("both.jsonl")
    assert {rule.id for rule in both.invariants} == ids and len(both.runs) == 2
    assert "of 2 books in both.jsonl" in capsys.readouterr().err
    muted = both.invariants[0].id
    assert main(["mute", "both.jsonl", muted, "--reason", "so it is meant"]) == 0
    assert main(["merge", "both.jsonl", "c.jsonl", "-o", "both.jsonl"]) == 0  # into one of them
    assert [rule.id for rule in read_book("both.jsonl").invariants if rule.mute] == [muted]
    assert len(read_book("both.jsonl").runs) == 3


@pytest.mark.parametrize(
    ("words", "slug", "names"),
    [
        (["a.jsonl", "a.tally", "-o", "out"], "bad-option", "traincheck infer a.tally -o BOOK"),
        (["a.jsonl", "absent", "-o", "out"], "book-not-found", "absent"),
        (["a.jsonl", "a", "-o", "out"], "bad-option", "run folder"),
        (["a.jsonl", "train.py", "-o", "out"], "book-unrecognised", "train.py"),
        (["a.jsonl", "-o", "train.py"], "other-file", "train.py"),
        (["a.jsonl", "-o", "a.tally"], "other-file", "a.tally"),
        (["a.tally", "-o", "a.jsonl"], "other-file", "a.jsonl"),
        (["torn.tally", "-o", "out"], "tally-unreadable", "torn.tally"),
    ],
)
def test_merge_refuses(
    words: list[str], slug: str, names: str, runs: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["infer", runs[0], "-o", "a.jsonl", "--tally", "a.tally"]) == 0
    Path("train.py").write_text("print()\n")
    Path("torn.tally").write_bytes(Path("a.tally").read_bytes()[:-8])
    before = files()
    assert main(["merge", *words]) == 2
    stderr = capsys.readouterr().err
    assert f"[{slug}]" in stderr and names in stderr
    assert files() == before


def test_a_run_in_two_tallies_counts_once(runs: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["infer", *runs[:2], "--tally", "ab.tally"]) == 0
    assert main(["infer", *runs[1:], "--tally", "bc.tally"]) == 0
    assert main(["merge", "ab.tally", "bc.tally", "-o", "abc.tally"]) == 0
    assert "bc.tally holds 1 run that ab.tally holds, too; each run counts once" in capsys.readouterr().err
    assert main(["infer", *runs, "--tally", "direct.tally"]) == 0
    assert Path("abc.tally").read_bytes() == Path("direct.tally").read_bytes()


def test_a_candidate_is_followed(runs: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["infer", *runs, "-o", "good.jsonl", "--tally", "all.tally"]) == 0
    capsys.readouterr()
    assert main(["explain", "--filter", "zero_grad resets gradients", *runs]) == 0
    stdout = capsys.readouterr().out
    assert stdout.startswith(f"kept: {CLEARED}")
    assert "(3 + 1) / (3 + 2) for 3 scripts, times (19 + 1) / (19 + 2) for 19 steps = 0.762" in stdout
    assert "in all 1 context: before some, stage train" in stdout and "19    0       19     3" in stdout
    assert "implied by" in stdout and "kept is" in stdout
    assert main(["explain", "--filter", "zero_grad resets gradients", "all.tally"]) == 0
    assert capsys.readouterr().out == stdout
    assert main(["explain", "--filter", "zero_grad clears", "--journal", "good.jsonl.journal.jsonl"]) == 0
    brief = capsys.readouterr().out
    assert brief.startswith(f"kept: {CLEARED}") and "context" not in brief


def test_failures_are_shown_with_their_distinct_contexts(runs: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "--filter", "Optimizer.step parameter data changes", *runs, "--json"]) == 0
    candidates = json.loads(capsys.readouterr().out)
    subject = {"api": "torch.optim.Optimizer.step", "grain": "parameter.data"}
    chosen = next(
        candidate
        for candidate in candidates
        if candidate.get("subject") == subject and candidate["property"]["detail"] == "changes"
    )
    assert (chosen["held"] or chosen["fate"] == "dropped") and chosen["relation"] == "EventContain"
    held = {
        counts["context"]["held"]: (counts["held"], counts["failed"], counts["steps"], counts["runs"])
        for counts in chosen["contexts"]
    }
    assert held == {"none": (0, 19, 19, 3), "this": (19, 0, 19, 3)}


def test_explain_shows_the_purpose_of_an_invariant(runs: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["infer", *runs, "-o", "good.jsonl"]) == 0
    rule = next(rule for rule in read_book("good.jsonl").invariants if rule.sentence == CLEARED)
    capsys.readouterr()
    assert main(["explain", "good.jsonl", rule.id[:6]]) == 0
    stdout = capsys.readouterr().out
    for part in (
        CLEARED,
        "parameter.grad around torch.optim.Optimizer.zero_grad",
        "a.py, b.py, c.py",
        "If it breaks: Gradients are not cleared between steps [gradients-not-cleared]",
        f"traincheck mute good.jsonl {rule.id} --reason",
    ):
        assert part in stdout
    assert main(["mute", "good.jsonl", rule.id, "--reason", "so it is meant"]) == 0
    assert main(["explain", "good.jsonl", rule.id]) == 0
    assert "--unmute" in capsys.readouterr().out
    assert main(["explain", "good.jsonl", rule.id, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["id"] == rule.id and data["mute"] == "so it is meant" and data["catches"]["advice"]
    assert data["observes"] and "= 0.762" in data["arithmetic"]


@pytest.mark.parametrize(
    ("words", "slug"),
    [
        ([], "bad-option"),
        (["good.jsonl"], "bad-option"),
        (["good.jsonl", "a", "b"], "bad-option"),
        (["good.jsonl", "a", "--journal", "j"], "bad-option"),
        (["--filter", "x"], "bad-option"),
        (["--filter", "x", "a", "--journal", "j"], "bad-option"),
        (["--filter", "x", "--journal", "absent"], "journal-unreadable"),
        (["--filter", "x", "absent"], "run-folder-not-found"),
        (["--filter", "x", "a", "-j", "0"], "bad-option"),
    ],
)
def test_explain_refuses(words: list[str], slug: str, runs: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", *words]) == 2
    assert f"[{slug}]" in capsys.readouterr().err
