"""Sampling watches the requested share of steps, in nested bursts of two with bounded gaps."""

from __future__ import annotations

import itertools

from hypothesis import example, given, settings
from hypothesis import strategies as st

from traincheck.runtime.recording.sampling import BURST, Sampling, in_sample

INTERVALS = st.integers(2, 3000)


def bursts(interval: int, count: int, first: int = 0) -> list[int]:
    """The bursts among `count` ones from `first` on that are watched."""
    return [burst for burst in range(first, first + count) if in_sample(BURST * burst, interval)]


@given(st.integers(0, 10**12), st.integers(1, 10**6))
def test_both_steps_of_a_burst_are_watched_or_none(burst: int, interval: int) -> None:
    assert in_sample(BURST * burst, interval) == in_sample(BURST * burst + 1, interval)


@given(st.integers(0, 10**12), st.integers(1, 10**5), st.integers(0, 10**5))
def test_a_larger_interval_watches_some_of_the_same_steps(step: int, interval: int, more: int) -> None:
    assert in_sample(step, interval) or not in_sample(step, interval + more)


@given(INTERVALS, st.integers(0, 10**9))
@settings(max_examples=25)
def test_the_requested_share_of_steps_is_watched(interval: int, first: int) -> None:
    """In any stretch of the run: the points of a golden rotation are spread evenly from the start on."""
    count = 20 * interval
    assert abs(len(bursts(interval, count, first)) - 20) <= 3


@given(INTERVALS, st.integers(0, 10**9))
@example(2, 0)
@example(3, 0)
@settings(max_examples=25)
def test_gaps_are_of_three_lengths_and_less_than_twice_the_interval(interval: int, first: int) -> None:
    steps = bursts(interval, 30 * interval, first)
    gaps = {after - before for before, after in itertools.pairwise(steps)}
    assert len(gaps) <= 3
    assert max(gaps) < 2 * interval
    assert steps[0] - first < 2 * interval


@given(st.integers(2, 200), st.integers(2, 60), st.integers(0, 59))
@settings(max_examples=40)
def test_periodic_events_are_sampled(interval: int, period: int, phase: int) -> None:
    """Whatever a program does every `period` steps, its share of the watched steps is what it is of all."""
    steps = range(phase % period, 400 * interval * period, period)
    watched = sum(in_sample(step, interval) for step in steps)
    assert 0.5 < watched / (len(steps) / interval) < 1.5


@given(INTERVALS, st.integers(0, 50))
def test_the_first_steps_are_watched(interval: int, warm_up: int) -> None:
    sampling = Sampling(interval, warm_up=warm_up)
    assert all(sampling.watches(step) for step in range(1, warm_up + 1))
    later = range(warm_up + 1, warm_up + 40)
    assert [sampling.watches(step) for step in later] == [in_sample(step, interval) for step in later]
