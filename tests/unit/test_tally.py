"""Tallies: what is counted once, what is added up, and what is remembered of arguments."""

from __future__ import annotations

import pytest

from recorded import training
from traincheck.inference.gathering import tally_windows
from traincheck.inference.tally import MOST_VALUES, Tally, candidates
from traincheck.vocab.events import FUNCTION, NO_CALL, TRAIN, Call, Window
from traincheck.vocab.facts import facts
from traincheck.vocab.occasion import Occasion, Property, Subject

STEP = ("EventContain", Subject("torch.optim.Optimizer.step"))
CHANGES = Property("contains change", "parameter.data", "changes")
X, Y, Z = (Property("holds", name) for name in "xyz")
F = Subject("f")


def counts(tally: Tally, prop: Property = X) -> dict[object, tuple[int, int, int]]:
    return {context: (one.held, one.failed, one.windows) for context, one in tally.evidence(("R", F), prop)}


def test_a_step_on_two_ranks_is_one_training_step() -> None:
    one, two = Tally("a.py", ""), Tally("a.py", "")
    tally_windows(training(8), one)
    for rank in (0, 1):
        tally_windows(training(8, rank=rank), two)
    ((_, alone),) = one.evidence(STEP, CHANGES)
    ((_, together),) = two.evidence(STEP, CHANGES)
    assert (alone.held, alone.windows) == (8, 8)
    assert (together.held, together.windows) == (16, 8)
    assert (one.steps, one.windows, two.steps, two.windows) == (8, 8, 8, 16)


def test_of_unequal_ranks_the_one_that_saw_most_is_believed() -> None:
    short, long = Tally("a.py", ""), Tally("a.py", "")
    tally_windows(training(3), short)
    tally_windows(training(8, rank=1), long)
    short.merge(long)
    ((_, count),) = short.evidence(STEP, CHANGES)
    assert (count.held, count.windows, short.steps) == (11, 8, 8)


def test_what_is_merged_stays_as_it_was() -> None:
    part, whole = Tally("a.py", ""), Tally("a.py", "")
    tally_windows(training(4), part)
    whole.merge(part)
    whole.merge(part)
    ((_, count),) = part.evidence(STEP, CHANGES)
    assert count.held == 4
    ((_, twice),) = whole.evidence(STEP, CHANGES)
    assert twice.held == 8


def test_runs_of_two_programs_are_not_parts_of_one() -> None:
    with pytest.raises(ValueError, match=r"a\.py and one of b\.py"):
        Tally("a.py", "").merge(Tally("b.py", ""))


def test_closed_and_open_worlds_in_one_context() -> None:
    """What is not told has failed only on the occasions that say so."""
    tally = Tally("a.py", "")
    tally.add_occasions("R", [Occasion(F, (), {X}, None, 0), Occasion(F, (), {Y}, None, 1)], 0)
    tally.add_occasions("R", [Occasion(F, (), {X}, {Z}, 0)], 1)
    assert counts(tally, X) == {(): (2, 1, 2)}
    assert counts(tally, Y) == {(): (1, 1, 1)}
    assert counts(tally, Z) == {(): (0, 3, 1)}  # at the least: which windows two counts share is not kept
    other = Tally("a.py", "")
    other.add_occasions("R", [Occasion(F, (), {X}, {Z}, 0)], 0)
    other.add_occasions("R", [Occasion(F, (), {Y}, None, 1), Occasion(F, (), {X}, None, 0)], 1)
    assert [counts(other, prop) for prop in (X, Y, Z)] == [counts(tally, prop) for prop in (X, Y, Z)]


def test_equal_contexts_of_two_processes_are_told_by_one_of_them() -> None:
    first, second = Tally("a.py", ""), Tally("a.py", "")
    first.add_occasions("R", [Occasion(F, facts(a=True), {X}, set(), 0)], 0)
    second.add_occasions("R", [Occasion(F, facts(a=1), {X}, set(), 0)], 0)
    orders = [(first, second), (second, first)]
    told = []
    for one, other in orders:
        whole = Tally("a.py", "")
        whole.merge(one)
        whole.merge(other)
        told.append(repr(list(whole.evidence(("R", F), X))))
    assert told[0] == told[1] and "held=2" in told[0]


def test_arguments_are_told_apart_by_type_and_forgotten_beyond_a_few() -> None:
    tally = Tally("a.py", "")
    given = [True, 1, 1.0, "1", None, *range(100, 120)]
    calls = tuple(
        Call(place, place, NO_CALL, FUNCTION, ("f",), args=facts(x=value)) for place, value in enumerate(given)
    )
    tally.add_window(Window(0, 1, TRAIN, calls))
    assert len(tally.arguments["f", "x"]) == MOST_VALUES
    few = Tally("a.py", "")
    few.add_window(Window(0, 1, TRAIN, calls[:5]))
    assert few.arguments["f", "x"] == {"True", "1", "1.0", "'1'", "None"}


def test_an_argument_is_known_under_the_most_general_name_too() -> None:
    tally = Tally("a.py", "")
    tally.add_window(Window(0, 1, TRAIN, (Call(0, 0, NO_CALL, FUNCTION, ("g.f", "f"), args=facts(x=1)),)))
    assert tally.arguments == {("g.f", "x"): {"1"}, ("f", "x"): {"1"}}


def test_arranged_it_depends_on_what_was_counted_alone() -> None:
    occasions = [Occasion(Subject(name), facts(a=value), {X, Y}, None, 0) for name in "gf" for value in (2, None, "x")]
    one, other = Tally("a.py", ""), Tally("a.py", "")
    one.add_occasions("R", occasions, 0)
    other.add_occasions("R", reversed(occasions), 0)
    assert repr(one.cells) != repr(other.cells)
    assert repr(one.arrange().cells) == repr(other.arrange().cells)


def test_candidates_are_those_of_all_runs() -> None:
    one, other = Tally("a.py", ""), Tally("b.py", "")
    one.add_occasions("R", [Occasion(F, (), {Y}, {X}, 0)], 0)
    other.add_occasions("R", [Occasion(F, (), {Z}, None, 0)], 0)
    assert candidates([one, other]) == [(("R", F), prop) for prop in (X, Y, Z)]
