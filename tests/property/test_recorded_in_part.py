"""A partial recording causes no false alarm when it is checked."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Iterable
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_drivers_agree import ALL, GOOD, judged, rules

from observed_process import observing
from traincheck.checking.engine import demand_of
from traincheck.runtime.recording import retention
from traincheck.runtime.recording.retention import Retention
from traincheck.runtime.recording.window_recorder import WindowRecorder
from traincheck.sources.recording.listener import RecorderListener
from traincheck.trace.reader import read_windows
from traincheck.vocab.demand import EVERYTHING, Demand
from traincheck.vocab.events import Window

Program = tuple[list[Window], frozenset[int]]
"""Return the windows of a program, and those that begin with repeated one-time values."""


@functools.cache
def program_windows(name: str, demand: Demand, length: int) -> Program:
    """A program that repeats one-time values after each `length` windows."""
    torch.manual_seed(0)
    begins = {0}
    with observing(demand) as seen:

        class RepeatEvery(RecorderListener):
            def window_closed(self, cut: object) -> None:
                if seen.recorder.window_index % length == 0:
                    begins.add(seen.recorder.window_index)
                    seen.recorder.repeat_reports()

        seen.recorder.add_listener(RepeatEvery())
        ALL[name]()
    assert seen.faults == [] and seen.missing == []
    return seen.windows, frozenset(begins)


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """The programs are short, so that the numbers are."""
    for name, value in (("FIRST_STEPS", 1), ("FIRST_EVALUATIONS", 0), ("BEFORE", 1), ("AFTER", 1), ("MAX_NEW", 0)):
        monkeypatch.setattr(retention, name, value)


def recorded(windows: Iterable[Window], begins: frozenset[int], with_findings: set[int], last: int) -> list[Window]:
    """Return the recorded windows, with findings in some, of a process that is killed after the last."""
    chosen, kept = Retention(), []
    for window in windows:
        if window.index > last:
            return kept
        if window.index in with_findings:
            chosen.record_around(window.index)
        kept += chosen.feed(window, begins=window.index in begins)
    return [*kept, *chosen.flush()]


LENGTHS = st.integers(2, 4)
WITH_FINDINGS = st.sets(st.integers(1, 14), max_size=2)
LAST = st.sampled_from((5, 9, 1000))


@pytest.mark.parametrize("name", GOOD)
@given(LENGTHS, WITH_FINDINGS, LAST)
@settings(max_examples=25)
def test_a_clean_program_stays_clean(name: str, length: int, with_findings: set[int], last: int) -> None:
    for demand in (EVERYTHING, demand_of(rules())):
        kept = recorded(*program_windows(name, demand, length), with_findings, last)
        assert judged(rules(), kept).violations == []


@pytest.mark.parametrize("name", ALL)
@given(LENGTHS, WITH_FINDINGS, LAST)
@settings(max_examples=15)
def test_no_verdict_is_worse_than_that_of_the_whole(name: str, length: int, with_findings: set[int], last: int) -> None:
    windows, begins = program_windows(name, EVERYTHING, length)
    in_whole = {(violation.invariant.id, violation.window) for violation in judged(rules(), windows).violations}
    kept = recorded(windows, begins, with_findings, last)
    assert {(violation.invariant.id, violation.window) for violation in judged(rules(), kept).violations} <= in_whole


def test_something_is_left_out() -> None:
    """Without a gap in the recording the other tests would compare nothing."""
    counts = {
        name: (program_windows(name, EVERYTHING, 2), len(program_windows(name, EVERYTHING, 2)[0])) for name in GOOD
    }
    assert any(len(recorded(*both, set(), 1000)) < most for both, most in counts.values())


@pytest.mark.parametrize("name", GOOD)
def test_selected_windows_are_written_and_readable(name: str) -> None:
    windows, _ = program_windows(name, EVERYTHING, 2)
    with tempfile.TemporaryDirectory() as folder:
        keeping = WindowRecorder(Path(folder), 1, 0, lambda: None, lambda: False)
        for window in windows:
            keeping.feed(window)
        keeping.close()
        (file,) = Path(folder).iterdir()
        read = list(read_windows(file))
    assert [restored.calls for restored in read] == [windows[restored.index].calls for restored in read]
    assert judged(rules(), read).violations == []
