"""The ranks of a job side by side in the report: how each fared, where they went apart, and which of them deviates."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from fake_ranks import learned
from traincheck.checking.live import LiveChecker
from traincheck.checking.offline import check_folder
from traincheck.checking.rank_comparison import Follower
from traincheck.checking.rank_states import difference_text
from traincheck.checking.results import CheckResult, result_of_live_run
from traincheck.invariants.book import Book
from traincheck.reporting.json_report import json_of, read_json
from traincheck.testing.readable_traces import from_text
from traincheck.trace.folder import RunFolder
from traincheck.trace.reader import last_step
from traincheck.trace.run_notes import Manifest, ProcessNote
from traincheck.trace.writer import TraceWriter
from traincheck.vocab.events import Window
from traincheck.vocab.finding import ENDED, GOING, KILLED, MISSING, STOPPED, Divergence, Violation
from traincheck.vocab.invariant import Invariant
from traincheck.vocab.occasion import Property, Subject
from traincheck.vocab.ranks import (
    DifferingRanks,
    differing_ranks_text,
    named_ranks,
    ranks_that_differ,
    ranks_that_share,
)

STEPS = 20
NOTE = ProcessNote(job="job", steps=STEPS, windows=STEPS, ended=True)


def trained(rank: int, steps: int = STEPS, *, since: int = STEPS + 1) -> list[Window]:
    """The windows of a rank that scales its loss by the factor of the others, and from a step on by another one."""
    lines = []
    for step in range(1, steps + 1):
        lines.append(f"window train step={step} rank={rank}")
        lines.append(f'  project train.scale site=train.py:7:main result={{"value":{2 + (step >= since)}}}')
    return from_text("\n".join(lines))


@pytest.fixture(scope="module")
def book() -> Book:
    """Return the rules of good runs in which all ranks scale equally."""
    return learned(trained, steps=STEPS)


def recorded(home: Path, ranks: Mapping[int, list[Window]], size: int, **notes: ProcessNote) -> RunFolder:
    """A run that is over, with these ranks; `notes` holds what the note of a rank says otherwise, as `rank_1`."""
    run = RunFolder.create(home / "run", Manifest(script="train.py", ended="2026-01-02T03:04:05+00:00"))
    for rank, windows in ranks.items():
        note = notes.get(f"rank_{rank}", NOTE)
        run.write_note(msgspec.structs.replace(note, rank=rank, process=100 + rank, world_size=size))
        with TraceWriter(run.path, rank, 100 + rank) as writer:
            for window in windows:
                writer.write(window)
    return run


def live(run: RunFolder, book: Book) -> CheckResult:
    """Return the live check of the same run."""
    for file in run.event_files():
        rank = int(file.stem.split("-")[1])
        checker = LiveChecker(book.invariants, run.path, 100 + rank, lambda _: None)
        checker.engine.outcome.rank = rank
        checker.save()
    with Follower(run, book.invariants, lambda _: None, pause=0.01) as follower:
        pass
    return result_of_live_run(run.path, book, follower.comparisons)


@pytest.mark.parametrize("check", [lambda run, book: check_folder(run.path, book), live], ids=["recorded", "live"])
def test_the_deviating_rank_of_four_is_named(
    tmp_path: Path, book: Book, check: Callable[[RunFolder, Book], CheckResult]
) -> None:
    ranks = {rank: trained(rank, since=7) if rank == 2 else trained(rank) for rank in range(4)}
    report = check(recorded(tmp_path, ranks, 4), book).report
    assert report.divergences == (Divergence("job", 7, "calls of train.scale differ", (2,), 4),)
    leader = report.findings[0]
    assert (leader.ranks, leader.compared, leader.step) == ((2,), 4, 7)
    assert "rank 2 differs from ranks 0, 1, 3 in what it got: 2, 2, 3, 2" in leader.observed
    assert [state.apart for state in report.ranks] == [None, None, 7, None]
    assert {(state.end, state.steps, state.windows, state.compared) for state in report.ranks} == {
        (ENDED, STEPS, STEPS, STEPS)
    }
    (tmp_path / "report.json").write_text(json_of(report))
    assert read_json(tmp_path / "report.json") == report


def test_two_differing_ranks_are_both_named(tmp_path: Path, book: Book) -> None:
    report = check_folder(recorded(tmp_path, {0: trained(0), 1: trained(1, since=5)}, 2).path, book).report
    (divergence,) = report.divergences
    assert (divergence.step, divergence.ranks, divergence.differing.is_minority) == (5, (0, 1), False)
    assert [(state.apart, state.what) for state in report.ranks] == [(5, "calls of train.scale differ")] * 2


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        (
            (Subject("parameter.used_grad", "ranks"), Property("same on ranks", "parameter.used_grad")),
            "gradients differ",
        ),
        ((Subject("optimizer_state.step", "ranks"), Property("same on ranks", "optimizer_state.step")), "state of"),
        ((Subject("module.batch", "ranks"), Property("differs on ranks", "module.batch")), "batches are the same"),
        ((Subject("torch.distributed", "ranks"), Property("messages", "received as sent")), "messages do not fit"),
        (
            (Subject("torch.distributed.all_reduce", "ranks"), Property("calls on ranks", "as often")),
            "collectives diff",
        ),
        ((Subject("train.draw", "ranks"), Property("arguments", "data of result", "all distinct")), "are the same"),
    ],
)
def test_divergences_have_short_descriptions(
    new_invariant: Callable[..., Invariant], rule: tuple[Subject, Property], text: str
) -> None:
    subject, prop = rule
    violated_rule = replace(new_invariant(), subject=subject, property=prop)
    assert text in difference_text(Violation(violated_rule, 3, 0, 7, 3, "train", 1, None, "", ()))


def test_the_end_of_each_recording_is_reported(tmp_path: Path, book: Book) -> None:
    ranks = {0: trained(0), 1: trained(1, 6), 2: trained(2, 9)}
    killed = msgspec.structs.replace(NOTE, steps=0, windows=0, ended=False)
    full = msgspec.structs.replace(NOTE, not_observed=("trace: OutputError: no space left",))
    run = recorded(tmp_path, ranks, 4, rank_1=killed, rank_2=full)
    report = check_folder(run.path, book).report
    assert [(state.end, state.steps, state.windows, state.recorded) for state in report.ranks] == [
        (ENDED, STEPS, STEPS, STEPS),
        (KILLED, 6, 6, 6),
        (STOPPED, STEPS, STEPS, 9),
        (MISSING, 0, 0, 0),
    ]
    assert [state.compared for state in report.ranks] == [6, 6, 6, None]
    run.update(ended="")
    assert check_folder(run.path, book).report.ranks[1].end == GOING


def test_the_note_gives_the_last_step_of_a_killed_partial_recording(tmp_path: Path, book: Book) -> None:
    killed = msgspec.structs.replace(NOTE, steps=8, windows=9, watched=8, left_out=2, ended=False)
    report = check_folder(recorded(tmp_path, {0: trained(0), 1: trained(1, 6)}, 2, rank_1=killed).path, book).report
    assert [(state.end, state.steps, state.windows) for state in report.ranks] == [
        (ENDED, STEPS, STEPS),
        (KILLED, 8, 9),
    ]
    assert report.run["recorded"] == (6, 8)


def test_ranks_without_a_rule_are_not_reported_as_agreeing(tmp_path: Path) -> None:
    report = check_folder(recorded(tmp_path, {0: trained(0), 1: trained(1)}, 2).path, Book(())).report
    assert [(state.end, state.compared) for state in report.ranks] == [(ENDED, None)] * 2


def test_a_run_of_one_rank_has_no_table(tmp_path: Path, book: Book) -> None:
    report = check_folder(recorded(tmp_path, {0: trained(0)}, 1).path, book).report
    assert report.ranks == () and report.divergences == ()


def test_the_last_step_of_a_torn_recording(tmp_path: Path) -> None:
    run = recorded(tmp_path, {0: trained(0, 6)}, 2)
    (file,) = run.event_files()
    assert last_step(file) == 6
    with file.open("ab") as torn:
        torn.write(b"\xff\xff\xff\xff\x10")
    assert last_step(file) == 6
    file.write_bytes(b"")
    assert last_step(file) == 0


def test_stored_live_violations_are_complete(tmp_path: Path, new_invariant: Callable[..., Invariant]) -> None:
    run = RunFolder.create(tmp_path / "run", Manifest())
    rule = new_invariant()
    checker = LiveChecker([rule], run.path, 7, lambda _: None)
    violation = Violation(
        rule, 3, 0, 7, 3, "train", 1, None, "", ("w",), 2, ("held",), "it was 3", DifferingRanks((1,), 4)
    )
    checker.engine.outcome.violations.append(violation)
    checker.save()
    (outcome,) = result_of_live_run(run.path, Book((rule,))).outcomes
    assert outcome.violations == [violation]


@pytest.mark.parametrize(
    ("values", "differing", "words"),
    [
        ("aaba", DifferingRanks((2,), 4), "rank 2 differs from ranks 0, 1, 3"),
        ("ab", DifferingRanks((0, 1), 2), "rank 0 and rank 1 differ"),
        ("abab", DifferingRanks((0, 1, 2, 3), 4), "ranks 0, 2 and ranks 1, 3 differ"),
        ("abcaa", DifferingRanks((1, 2), 5), "ranks 1, 2 differ from ranks 0, 3, 4"),
    ],
)
def test_the_majority_decides_which_rank_deviates(values: str, differing: DifferingRanks, words: str) -> None:
    assert (
        ranks_that_differ(list(enumerate(values))) == differing
        and differing_ranks_text(list(enumerate(values))) == words
    )
    assert differing.is_minority == (len(differing.ranks) * 2 < differing.compared)


def test_ranks_with_duplicate_values_are_named() -> None:
    assert ranks_that_share(list(enumerate("abcb"))) == DifferingRanks((1, 3), 4)


def test_many_ranks_are_named_by_their_ranges() -> None:
    assert named_ranks(range(1023)) == "ranks 0-1022"
    assert named_ranks([*range(5), 7, *range(9, 12)]) == "ranks 0-4, 7, 9-11"
    assert named_ranks(range(0, 1024, 2)) == "ranks 0, 2, 4, 6, 8, 10, 12, 14 and 504 more"
