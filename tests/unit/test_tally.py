"""Tallies: what is counted once, what is added up, and what is remembered of arguments."""

from __future__ import annotations

import pytest

from recorded_runs import training
from traincheck.inference.contexts import SKETCH
from traincheck.inference.tally import MAX_VALUES, Count, Tally, candidates
from traincheck.inference.tally_runs import tally_windows
from traincheck.vocab.events import FUNCTION, NO_CALL, TRAIN, Call, Window
from traincheck.vocab.facts import facts
from traincheck.vocab.occasion import Occasion, Property, Subject

STEP = ("EventContain", Subject("torch.optim.Optimizer.step"))
CHANGES = Property("contains change", "parameter.data", "changes")
X, Y, Z = (Property("holds", name) for name in "xyz")
F = Subject("f")


def counts(tally: Tally, prop: Property = X) -> dict[object, tuple[int, int, int]]:
    return {context: (count.held, count.failed, count.windows) for context, count in tally.evidence(("R", F), prop)}


def test_a_step_on_two_ranks_is_one_training_step() -> None:
    first, second = Tally("a.py", ""), Tally("a.py", "")
    tally_windows(training(8), first)
    for rank in (0, 1):
        tally_windows(training(8, rank=rank), second)
    ((_, alone),) = first.evidence(STEP, CHANGES)
    ((_, together),) = second.evidence(STEP, CHANGES)
    assert (alone.held, alone.windows) == (8, 8)
    assert (together.held, together.windows) == (16, 8)
    assert (first.steps, first.windows, second.steps, second.windows) == (8, 8, 8, 16)


def test_the_rank_with_most_windows_counts() -> None:
    short, long = Tally("a.py", ""), Tally("a.py", "")
    tally_windows(training(3), short)
    tally_windows(training(8, rank=1), long)
    short.merge(long)
    ((_, count),) = short.evidence(STEP, CHANGES)
    assert (count.held, count.windows, short.steps) == (11, 8, 8)


def test_merging_does_not_change_its_inputs() -> None:
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
    """A missing property fails only on the occasions that state it."""
    tally = Tally("a.py", "")
    tally.add_occasions("R", [Occasion(F, (), {X}, None, 0), Occasion(F, (), {Y}, None, 1)], 0)
    tally.add_occasions("R", [Occasion(F, (), {X}, {Z}, 0)], 1)
    assert counts(tally, X) == {(): (2, 1, 2)}
    assert counts(tally, Y) == {(): (1, 1, 1)}
    assert counts(tally, Z) == {(): (0, 3, 2)}  # in the first it was not told, in the second said to fail
    other = Tally("a.py", "")
    other.add_occasions("R", [Occasion(F, (), {X}, {Z}, 0)], 0)
    other.add_occasions("R", [Occasion(F, (), {Y}, None, 1), Occasion(F, (), {X}, None, 0)], 1)
    assert [counts(other, prop) for prop in (X, Y, Z)] == [counts(tally, prop) for prop in (X, Y, Z)]


def seen_in(*indices: int, held: bool = True) -> Tally:
    """Return the tally of a process that judged `X` in these windows."""
    counted = Tally("a.py", "")
    for index in indices:
        counted.add_occasions("R", [Occasion(F, (), {X} if held else {Y}, set() if held else {X}, 0)], index)
    return counted


def count_of(tally: Tally, prop: Property = X) -> Count:
    ((_, count),) = tally.evidence(("R", F), prop)
    return count


def test_a_sketch_counts_distinct_windows_of_several_processes() -> None:
    """Windows 0 to 3 and 2 to 6 are seven; of the counts alone it is known that they are five at the least."""
    first, second = seen_in(0, 1, 2, 3), seen_in(2, 3, 4, 5, 6)
    first.merge(second)
    assert first.cells["R", F][()].properties[X].windows == 5
    assert count_of(first).windows == 7 and count_of(first).seen == 0b1111111


def test_a_full_sketch_falls_back_to_the_count() -> None:
    long = seen_in(*range(3 * SKETCH))
    assert count_of(long).windows == 3 * SKETCH
    assert count_of(long).seen == (1 << SKETCH) - 1
    long.merge(seen_in(5 * SKETCH + 1))
    assert count_of(long).windows == 3 * SKETCH  # at the least: its bit was set


def test_failures_have_a_sketch_of_their_own() -> None:
    tally = seen_in(0, 1, 4)
    tally.merge(seen_in(4, SKETCH + 9, held=False))
    assert (count_of(tally).seen, count_of(tally).missed) == (1 << 0 | 1 << 1 | 1 << 4 | 1 << 9, 1 << 4 | 1 << 9)


def test_closed_world_windows_without_the_property_count() -> None:
    tally = Tally("a.py", "")
    for index in range(4):
        tally.add_occasions("R", [Occasion(F, (), {X, Y} if index == 2 else {X}, None, 0)], index)
    assert (count_of(tally, X).seen, count_of(tally, X).missed) == (0b1111, 0)
    assert (count_of(tally, Y).seen, count_of(tally, Y).missed) == (0b1111, 0b1011)
    never = count_of(tally, Z)
    assert (never.held, never.failed, never.windows, never.missed) == (0, 4, 4, 0b1111)
    # Told on one occasion of a window and not on another, it failed there, too: known only where it was said.
    tally.add_occasions("R", [Occasion(F, (), {X}, None, 1)], 2)
    assert count_of(tally, Y).failed == 4 and count_of(tally, Y).missed == 0b1011


def test_merged_equal_contexts_do_not_depend_on_order() -> None:
    first, second = Tally("a.py", ""), Tally("a.py", "")
    first.add_occasions("R", [Occasion(F, facts(a=True), {X}, set(), 0)], 0)
    second.add_occasions("R", [Occasion(F, facts(a=1), {X}, set(), 0)], 0)
    orders = [(first, second), (second, first)]
    contexts = []
    for own, others in orders:
        whole = Tally("a.py", "")
        whole.merge(own)
        whole.merge(others)
        contexts.append(repr(list(whole.evidence(("R", F), X))))
    assert contexts[0] == contexts[1] and "held=2" in contexts[0]


def test_arguments_are_distinguished_by_type_and_limited() -> None:
    tally = Tally("a.py", "")
    given = [True, 1, 1.0, "1", None, *range(100, 120)]
    calls = tuple(
        Call(index, index, NO_CALL, FUNCTION, ("f",), args=facts(x=value)) for index, value in enumerate(given)
    )
    tally.add_window(Window(0, 1, TRAIN, calls))
    assert len(tally.arguments["f", "x"]) == MAX_VALUES
    few = Tally("a.py", "")
    few.add_window(Window(0, 1, TRAIN, calls[:5]))
    assert few.arguments["f", "x"] == {"True", "1", "1.0", "'1'", "None"}


def test_an_argument_is_known_under_the_most_general_name_too() -> None:
    tally = Tally("a.py", "")
    tally.add_window(Window(0, 1, TRAIN, (Call(0, 0, NO_CALL, FUNCTION, ("g.f", "f"), args=facts(x=1)),)))
    assert tally.arguments == {("g.f", "x"): {"1"}, ("f", "x"): {"1"}}


def test_a_sorted_tally_depends_on_its_counts_only() -> None:
    occasions = [Occasion(Subject(name), facts(a=value), {X, Y}, None, 0) for name in "gf" for value in (2, None, "x")]
    first, second = Tally("a.py", ""), Tally("a.py", "")
    first.add_occasions("R", occasions, 0)
    second.add_occasions("R", reversed(occasions), 0)
    assert repr(first.cells) != repr(second.cells)
    assert repr(first.arrange().cells) == repr(second.arrange().cells)


def test_candidates_are_those_of_all_runs() -> None:
    first, second = Tally("a.py", ""), Tally("b.py", "")
    first.add_occasions("R", [Occasion(F, (), {Y}, {X}, 0)], 0)
    second.add_occasions("R", [Occasion(F, (), {Z}, None, 0)], 0)
    assert candidates([first, second]) == [(("R", F), prop) for prop in (X, Y, Z)]
