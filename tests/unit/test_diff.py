"""Differences between books: what went, what came, and what rests on something else."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from traincheck.cli.main import main
from traincheck.invariants.book import Book, LearnedRun, write_book
from traincheck.invariants.diff import compare
from traincheck.vocab.invariant import Clause, Invariant, Precondition, Support
from traincheck.vocab.occasion import Property

Make = Callable[..., Invariant]
RUN, OTHER = LearnedRun("cnn.py", "d", 40), LearnedRun("gpt.py", "d", 60)


def test_equal_books_differ_in_nothing(some_invariants: tuple[Invariant, ...]) -> None:
    book = Book(some_invariants, (RUN, RUN))
    difference = compare(book, book)
    assert difference.empty and difference.same == 4


def test_the_comparison_lists_removed_and_added_rules(some_invariants: tuple[Invariant, ...]) -> None:
    a, b = Book(some_invariants[:3], (RUN, RUN)), Book(some_invariants[1:], (RUN, OTHER))
    difference = compare(a, b)
    assert (difference.only_in_a, difference.only_in_b, difference.changed) == (
        some_invariants[:1],
        some_invariants[3:],
        (),
    )
    assert (difference.same, difference.runs_only_in_a, difference.runs_only_in_b) == (2, (RUN,), (OTHER,))
    back = compare(b, a)
    assert (back.only_in_a, back.only_in_b) == (difference.only_in_b, difference.only_in_a)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("severity", {"severity": "notice"}),
        ("confidence", {"confidence": 0.5}),
        ("scope", {"scope": "pipeline"}),
        ("support", {"support": Support(1, 2, 3, 4)}),
        ("origin", {"origin": ("mnist.py", "gpt.py")}),
        ("mute", {"mute": "on purpose"}),
        ("experience", {"experience": Precondition((Clause("autocast", "off"),))}),
    ],
)
def test_each_field_of_a_rule_is_compared(name: str, change: dict[str, object], new_invariant: Make) -> None:
    rule = new_invariant()
    (changed,) = compare(Book((rule,)), Book((replace(rule, **change),))).changed  # type: ignore[arg-type]
    assert changed.fields == (name,) and changed.a is rule


def test_a_rule_with_another_condition_is_one_rule(new_invariant: Make) -> None:
    narrow, wide = new_invariant(clauses=(Clause("stage", "train"),)), new_invariant()
    difference = compare(Book((narrow,)), Book((wide,)))
    assert [(changed.a, changed.b, changed.fields) for changed in difference.changed] == [
        (narrow, wide, ("condition",))
    ]
    assert (difference.only_in_a, difference.only_in_b, difference.same) == ((), (), 0)
    third = new_invariant(clauses=(Clause("stage", "eval"),))
    several = compare(Book((narrow,)), Book((wide, third)))  # which of the two it became is not told
    assert (several.only_in_a, len(several.only_in_b), several.changed) == ((narrow,), 2, ())


@pytest.fixture
def books(folder: Path, some_invariants: tuple[Invariant, ...], new_invariant: Make) -> None:
    """a.jsonl and b.jsonl, with a difference of every kind."""
    first, second, third, fourth = some_invariants
    now = replace(second, severity="notice", mute="we freeze it", confidence=0.6)
    reworded = replace(first, precondition=Precondition((Clause("stage", "train"),)), id="")
    write_book(Book((first, second, third), (RUN,)), "a.jsonl")
    added = new_invariant(Property("preceded by", "x"), sentence="x is called", relation="APISequence")
    write_book(Book((reworded, now, third, fourth, added), (RUN, OTHER)), "b.jsonl")


@pytest.mark.usefixtures("books")
def test_differences_are_printed_as_sentences(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", "a.jsonl", "b.jsonl"]) == 0
    output = capsys.readouterr().out
    assert output.index("APISequence") < output.index("EventContain")
    for part in (
        "only in b.jsonl",
        "notice: After torch.optim.Optimizer.step the loss is printed. (muted: only this script prints)",
        "condition grads is not none and stage is train -> stage is train",
        "severity error -> notice",
        "muted: we freeze it",
        "confidence 1.000 -> 0.600",
        "only b.jsonl was learned from gpt.py (60 steps)",
        "0 only in a.jsonl, 2 only in b.jsonl, 2 changed, 1 the same",
    ):
        assert part in output
    assert "only in a.jsonl\n" not in output
    assert main(["diff", "b.jsonl", "a.jsonl"]) == 0
    assert "no longer muted (the reason was: we freeze it)" in capsys.readouterr().out


@pytest.mark.usefixtures("books")
def test_differences_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", "a.jsonl", "b.jsonl", "--json"]) == 0
    output = json.loads(capsys.readouterr().out)
    assert (len(output["only_in_a"]), len(output["only_in_b"]), output["same"]) == (0, 2, 1)
    assert [changed["what"] for changed in output["changed"]] == [["condition"], ["severity", "mute", "confidence"]]
    assert output["changed"][1]["b"]["mute"] == "we freeze it"
    assert output["runs_only_in_b"] == [{"script": "gpt.py", "digest": "d", "steps": 60}]


@pytest.mark.usefixtures("books")
def test_a_difference_fails_only_on_request(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", "a.jsonl", "b.jsonl", "--fail-on-change"]) == 3
    assert main(["diff", "a.jsonl", "a.jsonl", "--fail-on-change"]) == 0
    assert "3 rules the same" in capsys.readouterr().out
    assert main(["diff", "a.jsonl", "absent.jsonl"]) == 2
    assert main(["diff", "a.jsonl"]) == 2
    assert "book-not-found" in capsys.readouterr().err
