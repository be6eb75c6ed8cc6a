"""Which windows of a checked run are recorded: what is worth it is, in order, and memory stays bounded."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from traincheck.runtime.recording.retention import (
    AFTER,
    BEFORE,
    FARTHEST,
    FIRST_EVALUATIONS,
    FIRST_STEPS,
    IN_A_ROW,
    LENGTH,
    MAX_NEW,
    Retention,
)
from traincheck.vocab.events import END, EVAL, FUNCTION, SETUP, TRAIN, Call, Reading, Window

SPARSE = 100
"""Recorded of 10,000 steps at the most: the first, the last and the pairs between."""


def window(index: int, step: int, stage: str = TRAIN, events: int = 1, names: Iterable[str] = ("torch.add",)) -> Window:
    calls = tuple(Call(seq, seq, -1, FUNCTION, (name,)) for name in names for seq in range(events))
    return Window(index, step, stage, calls, (), 0, 1)


def run(steps: int, evaluate_every: int = 0) -> list[Window]:
    """Set-up, steps, evaluations and the end of a run."""
    windows = [window(0, 0, SETUP)]
    for step in range(1, steps + 1):
        windows.append(window(len(windows), step))
        if evaluate_every and step % evaluate_every == 0:
            windows.append(window(len(windows), step, EVAL))
    return [*windows, window(len(windows), steps, END)]


@dataclass
class Recorded:
    """The recorded windows, and the starts of stretches."""

    windows: list[Window]
    begins: set[int]
    stretches: Retention

    @property
    def steps(self) -> list[int]:
        return [window.step for window in self.windows if window.stage == TRAIN]


def record(windows: Sequence[Window], flagged: Iterable[int] = (), stretches: Retention | None = None) -> Recorded:
    """Record a run in which something was found in some windows (by index), which is known when they are fed. Stretches
    begin as `Keeping` has them begin."""
    stretches, flagged, begins = stretches or Retention(), set(flagged), {0}
    kept: list[Window] = []
    follows = length = 0
    for window in windows:
        begin = (window.stage == TRAIN and window.step % LENGTH == 0) or length == 2 * LENGTH
        length = 1 if begin else length + 1
        if begin or window.index != follows:
            begins.add(window.index)
        follows = window.index + 1
        if window.index in flagged:
            stretches.record_around(window.index)
        kept += stretches.feed(window, begins=begin)
    return Recorded([*kept, *stretches.flush()], begins, stretches)


def is_readable(recorded: Recorded) -> None:
    """In order, and what is behind a gap is the beginning of a stretch."""
    before = -1
    for window in recorded.windows:
        assert window.index > before
        assert window.index == before + 1 or window.index in recorded.begins
        before = window.index


def test_the_beginning_the_end_and_pairs_between_are_recorded() -> None:
    recorded = record(run(10_000))
    is_readable(recorded)
    steps = recorded.steps
    assert steps[:FIRST_STEPS] == list(range(1, FIRST_STEPS + 1))
    assert steps[-BEFORE:] == list(range(10_001 - BEFORE, 10_001))
    assert recorded.windows[0].stage == SETUP and recorded.windows[-1].stage == END
    assert len(steps) < SPARSE
    between = [step for step in steps if FIRST_STEPS < step < 10_000 - 2 * LENGTH]
    assert all(second == first + 1 for first, second in zip(between[::IN_A_ROW], between[1::IN_A_ROW], strict=True))
    distances = [
        second - first for first, second in zip(between[::IN_A_ROW], between[IN_A_ROW::IN_A_ROW], strict=False)
    ]
    assert all(second >= first - LENGTH for first, second in pairwise(distances))
    assert abs(distances[-1] - FARTHEST) < LENGTH and distances[0] < 2 * LENGTH
    assert recorded.stretches.skipped_steps == 10_000 - len(steps)


@given(st.integers(1, 400), st.sets(st.integers(1, 400), max_size=4), st.integers(0, 30), st.sets(st.integers(0, 450)))
def test_findings_are_recorded_with_neighbouring_windows(
    steps: int, flagged: set[int], evaluate_every: int, missing: set[int]
) -> None:
    windows = [window for window in run(steps, evaluate_every) if window.index not in missing or not window.index]
    there = [window.index for window in windows]
    recorded = record(windows, flagged)
    is_readable(recorded)
    kept = {window.index for window in recorded.windows}
    for index in flagged & set(there):
        position = there.index(index)
        assert kept >= set(there[max(0, position - BEFORE) : position + 1])
        assert kept >= {later for later in there if index <= later <= index + AFTER}
    trained = sum(window.stage == TRAIN for window in windows)
    assert recorded.stretches.skipped_steps == trained - len(recorded.steps)


@given(st.lists(st.integers(1, 60), min_size=1, max_size=200), st.sets(st.integers(0, 200), max_size=3), st.booleans())
def test_memory_is_bounded(sizes: list[int], flagged: set[int], begins: bool) -> None:
    most = 100
    stretches, recorded = Retention(most), []
    for index, size in enumerate(sizes, FIRST_STEPS + 1):
        if index in flagged:
            stretches.record_around(index)
        recorded += stretches.feed(window(index, index, events=size), begins=begins and index % LENGTH == 0)
        held = stretches.waiting
        assert sum(len(window.calls) for window in held) <= most or len(held) == 1
        if begins:
            assert len(held) < BEFORE + 2 * LENGTH
    indices = [window.index for window in recorded]
    assert indices == sorted(set(indices))


def test_the_last_large_window_is_recorded() -> None:
    stretches = Retention(10)
    for index in range(30, 60):
        list(stretches.feed(window(index, index, events=50), begins=True))
        assert len(stretches.waiting) <= 1
    assert [window.index for window in stretches.flush()] == [59]


def test_a_stretch_that_was_let_go_of_is_not_recorded_further_on() -> None:
    stretches, recorded = Retention(10), []
    for index in range(100, 120):  # without a beginning, so that it grows too large
        recorded += stretches.feed(window(index, 21 + index, events=3), begins=False)
    stretches.record_around(119)
    recorded += stretches.feed(window(120, 141, events=3), begins=False)
    assert [window.index for window in recorded] == [100, 101]  # the pair with which it began
    recorded += stretches.feed(window(121, 142, events=3), begins=True)
    assert recorded[-1].index == 121


def test_evaluations_are_recorded_in_growing_distance() -> None:
    recorded = record(run(3000, evaluate_every=50))
    is_readable(recorded)
    evaluated = [window.step // 50 for window in recorded.windows if window.stage == EVAL]
    assert evaluated[:FIRST_EVALUATIONS] == [1, 2, 3] and 3 < len(evaluated) < 15
    assert len(recorded.steps) < 60 + LENGTH * len(evaluated)


def test_evaluations_before_the_first_step_do_not_fill_the_recording() -> None:
    windows = [window(0, 0, SETUP), *(window(index, 0, EVAL) for index in range(1, 5000)), window(5000, 0, END)]
    assert len(record(windows).windows) < 500


def test_first_events_of_a_kind_are_recorded() -> None:
    windows = run(500)
    windows[250] = window(250, 250, names=("torch.add", "torch.save"))
    class_readings = (Reading(1, -1, "Adam", "optimizer", "class", "Adam"),)
    windows[341], windows[391] = (Window(index, index, TRAIN, (), (), 0, 1, class_readings) for index in (341, 391))
    recorded = record(windows)
    is_readable(recorded)
    assert {250, 341} < set(recorded.steps) and {252, 342, 391}.isdisjoint(recorded.steps)


def test_names_without_end_do_not_have_everything_recorded() -> None:
    windows = [window(0, 0, SETUP), *(window(step, step, names=(f"made.{step}",)) for step in range(1, 1000))]
    assert len(record(windows).windows) < MAX_NEW + SPARSE


def test_record_all_records_everything() -> None:
    stretches, windows = Retention(), run(100)
    for window in windows:
        assert list(stretches.feed(window, begins=False, chosen=True)) == [window] and not stretches.waiting
    assert stretches.skipped_steps == 0


@pytest.mark.parametrize("step", [1, 40, 399])
def test_overlapping_findings_are_written_once(step: int) -> None:
    recorded = record(run(400), {step, step + 1})
    is_readable(recorded)
    assert len({window.index for window in recorded.windows}) == len(recorded.windows)


@pytest.mark.parametrize("until", [30, 333, 1000])
def test_ranks_record_the_same_also_where_one_of_them_did_not_know_at_first(until: int) -> None:
    windows, late, begins = run(6000), Retention(), set()
    recorded = [kept for window in windows[:until] for kept in late.feed(window, begins=False, chosen=True)]
    for window in windows[until:]:
        begins |= {window.index} if window.step % LENGTH == 0 else set()
        recorded += late.feed(window, begins=window.index in begins)
    steps = [window.step for window in (*recorded, *late.flush()) if window.stage == TRAIN]
    assert steps[:until] == [*range(1, until), *steps[until - 1 : until]]
    behind = until + 2 * LENGTH
    assert [step for step in steps if step > behind] == [step for step in record(windows).steps if step > behind]
