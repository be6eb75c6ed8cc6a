"""A recording without its middle causes no alarm, and repeated reports of sources change no verdict."""

from __future__ import annotations

import functools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_drivers_agree import ALL, GOOD, comparable, in_full, judged, rules

from observed_process import observing
from traincheck.checking.engine import demand_of
from traincheck.sources.recording.listener import RecorderListener
from traincheck.vocab.demand import EVERYTHING, Demand
from traincheck.vocab.events import Window


@functools.cache
def telling_anew(name: str, demand: Demand) -> list[Window]:
    """Return the windows of a program that repeats one-time values in each, as at the beginning of a segment."""
    torch.manual_seed(0)
    with observing(demand) as seen:

        class RepeatReports(RecorderListener):
            def window_closed(self, cut: object) -> None:
                seen.recorder.repeat_reports()

        seen.recorder.add_listener(RepeatReports())
        ALL[name]()
    assert seen.faults == [] and seen.missing == []
    return seen.windows


@pytest.mark.parametrize("name", ALL)
def test_repeated_reports_change_no_verdict(name: str) -> None:
    again, once = judged(rules(), telling_anew(name, EVERYTHING)), judged(rules(), in_full(name))

    def failed(outcome: object) -> object:
        return [(violation[0], violation[1], violation[3]) for violation in comparable(outcome)[1]]  # type: ignore[index, arg-type]

    assert failed(again) == failed(once)
    for rule, tried in once.tried.items():
        assert again.tried[rule].triggered >= tried.triggered > 0 or tried.triggered == 0


@pytest.mark.parametrize("name", GOOD)
@given(st.integers(0, 40), st.integers(0, 40))
@settings(max_examples=25)
def test_a_clean_program_stays_clean_with_its_middle_removed(name: str, first: int, length: int) -> None:
    for demand in (EVERYTHING, demand_of(rules())):
        windows = telling_anew(name, demand)
        first = max(1, first)
        outcome = judged(rules(), [*windows[:first], *windows[first + length :]])
        assert outcome.violations == []


@pytest.mark.parametrize("name", ALL)
@given(st.integers(1, 40), st.integers(0, 40))
@settings(max_examples=15)
def test_no_verdict_is_worse_than_that_of_the_whole_recording(name: str, first: int, length: int) -> None:
    windows = telling_anew(name, EVERYTHING)
    in_whole = {(violation.invariant.id, violation.window) for violation in judged(rules(), windows).violations}
    outcome = judged(rules(), [*windows[:first], *windows[first + length :]])
    assert {(violation.invariant.id, violation.window) for violation in outcome.violations} <= in_whole
