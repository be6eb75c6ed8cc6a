"""Results of experiments are counted, merged over processes, and concluded in one line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from recorded_runs import training, write_run
from traincheck.checking.offline import check_folder
from traincheck.checking.verification_tally import MAX_REASONS, MAX_ROWS, VerificationTally, merged
from traincheck.invariants.book import Book
from traincheck.reporting.json_report import read_json, write_json
from traincheck.reporting.verification_table import conclusion, verification_rows, without_occasion
from traincheck.trace.folder import RunFolder
from traincheck.trace.run_notes import ProcessNote
from traincheck.vocab.events import NO_CALL, Reading, Window
from traincheck.vocab.facts import facts
from traincheck.vocab.finding import Counts, Finding, Report
from traincheck.vocab.invariant import Invariant
from traincheck.vocab.replayed_computations import PERSISTENT, SAME, TRANSIENT
from traincheck.vocab.verification import AGREES, DISAGREES, EXPERIMENTS, KIND, UNDECIDED, VerifiedComputation


def reading(experiment: str, value: str, found: str = "", subject: str = "Net", kind: str = KIND) -> Reading:
    return Reading(1, NO_CALL, subject, kind, experiment, value, context=facts(found=found) if found else ())


def counted(*readings: Reading) -> dict[str, VerifiedComputation]:
    tally = VerificationTally()
    for step, each in enumerate(readings):
        tally.feed(Window(step, step, "train", readings=(each,)))
    return {row.experiment: row for row in tally.rows}


def test_results_are_counted_by_experiment_and_subject() -> None:
    rows = counted(
        reading("forward", SAME),
        reading("forward", TRANSIENT),
        reading("backward", PERSISTENT),
        reading("update", UNDECIDED),
        reading("derivative", AGREES),
        reading("derivative", DISAGREES, "it is twice as large"),
        reading("derivative", UNDECIDED, "a custom function"),
        reading("unknown", AGREES),
        reading("forward", SAME, kind="hyperparameter"),
    )
    assert list(rows) == ["derivative", "forward", "backward", "update"]
    assert rows["derivative"] == VerifiedComputation("derivative", "Net", 1, 1, ("a custom function",))
    assert (rows["forward"].agreed, rows["forward"].disagreed) == (1, 1)
    assert [row.verdict for row in rows.values()] == ["wrong", "wrong", "wrong", "undecided"]
    assert rows["update"].reasons and not rows["update"].times


def test_subjects_are_ordered_by_their_numbers() -> None:
    tally = VerificationTally()
    names = ("Adam#10", "Adam#2", "Adam", "Net.layers.3", "Net.layers.12")
    for step, name in enumerate(names):
        tally.feed(Window(step, step, "train", readings=(reading("algorithm", AGREES, subject=name),)))
    assert [row.subject for row in tally.rows] == ["Adam", "Adam#2", "Adam#10", "Net.layers.3", "Net.layers.12"]


def test_a_summary_stays_small() -> None:
    many = [reading("algorithm", UNDECIDED, f"reason {number}") for number in range(3 * MAX_REASONS)]
    others = [reading("algorithm", AGREES, subject=f"SGD#{number}") for number in range(2 * MAX_ROWS)]
    tally = VerificationTally()
    for each in (*many, *others):
        tally.feed(Window(0, 1, "train", readings=(each,)))
    assert len(tally.rows) == MAX_ROWS
    assert max(len(row.reasons) for row in tally.rows) == MAX_REASONS


def test_ranks_share_a_row() -> None:
    one = VerifiedComputation("samples", "Net", 3, 0, ("a",))
    other = replace(one, disagreed=1, reasons=("b", "a"))
    assert merged([one, other]) == (VerifiedComputation("samples", "Net", 6, 1, ("a", "b")),)


def test_a_checked_recording_keeps_the_table(tmp_path: Path, new_invariant: Callable[..., Invariant]) -> None:
    path = write_run(tmp_path / "run", "train.py", {(0, 7): training(), (1, 8): training(rank=1)})
    folder, row = RunFolder.open(path), VerifiedComputation("algorithm", "SGD", 4, 0, ("a",))
    for rank, process in ((0, 7), (1, 8)):
        folder.write_note(ProcessNote(rank=rank, process=process, verified=(row,), ended=True))
    report = check_folder(path, Book((new_invariant(),))).report
    assert report.verification == (VerifiedComputation("algorithm", "SGD", 8, 0, ("a",)),)
    write_json(report, tmp_path / "report.json")
    assert read_json(tmp_path / "report.json").verification == report.verification


def test_rows_say_what_was_found() -> None:
    table = verification_rows(
        [
            VerifiedComputation("round_trip", "Net", 4),
            VerifiedComputation("forward", "Net", 3, 1),
            VerifiedComputation("later_tokens", "Net", 0, 4),
            VerifiedComputation("padding", "Net", reasons=("the model takes no mask", "no padding")),
            VerifiedComputation("derivative", "Net", 9, reasons=("layer.weight is too small",)),
        ]
    )
    assert [row[:4] for row in table] == [
        ("round trip", "Net", "4", "agrees"),
        ("forward again", "Net", "4", "wrong 1 of 4 times"),
        ("later tokens", "Net", "4", "does not hold 4 of 4 times: outputs depend on later tokens, which encoders mean"),
        ("padding", "Net", "0", "undecided: the model takes no mask; no padding"),
        ("derivative", "Net", "9", "agrees (undecided in part: layer.weight is too small)"),
    ]


def test_experiments_without_an_occasion_are_listed() -> None:
    assert without_occasion([VerifiedComputation(name, "Net", 1) for name in EXPERIMENTS]) == []
    listed = without_occasion([VerifiedComputation("forward", "Net", 1)])
    assert len(listed) == len(EXPERIMENTS) and "later tokens" in listed


AGREEING = VerifiedComputation("algorithm", "SGD", 20)
OPEN = VerifiedComputation("padding", "Net", reasons=("no mask",))
ERROR = Finding("error", 4, 0, "A gradient is wrong", "", None, (), "", "", (), ("ab",), 4, 1)


@pytest.mark.parametrize(
    ("report", "failure", "text", "is_verified"),
    [
        (Report((), Counts(steps=21), verification=(AGREEING,)), "", "verified: nothing wrong found in 20 steps", True),
        (
            Report((), Counts(steps=1), verification=(AGREEING, OPEN)),
            "",
            "verified: nothing wrong found in 1 step; the program ended before step 20; "
            "1 of 2 computations could not be decided",
            True,
        ),
        (
            Report((), Counts(steps=21), verification=(OPEN,)),
            "",
            "not verified: no experiment could decide in 20 steps",
            False,
        ),
        (Report((), Counts(steps=21)), "", "not verified: no experiment had an occasion in 20 steps", False),
        (Report((), Counts(), run={"untrained": "no update was seen"}), "", "not verified: no update was seen", False),
        (
            Report((), Counts(steps=3), verification=(AGREEING,)),
            "the program failed",
            "not verified: the program failed after 3 steps; nothing wrong was found until then",
            False,
        ),
        (
            Report((ERROR, replace(ERROR, title="Another"), replace(ERROR, severity="notice")), Counts(steps=9)),
            "the program failed",
            "wrong: A gradient is wrong, first at step 4, and 1 more error",
            False,
        ),
        (
            Report((replace(ERROR, severity="notice"),), Counts(steps=21), verification=(AGREEING,)),
            "",
            "verified: nothing wrong found in 20 steps",
            True,
        ),
    ],
)
def test_the_result_is_one_line(report: Report, failure: str, text: str, is_verified: bool) -> None:
    assert conclusion(report, 20, failure) == (text, is_verified)
