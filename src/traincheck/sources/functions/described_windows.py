"""Decides in which windows calls are described, and where the lines of a window begin and end.

Where a training step follows another, its lines begin right after the last update: what a program prepares for a step
belongs to it. A step after an evaluation or after the set-up is described in part, as is what the end of the run may
have interrupted: lines may be new there, but none can be missing. What follows the training has no lines.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Protocol

from traincheck.sources.recording.descriptions import Schedule
from traincheck.sources.recording.recorder import Recorder
from traincheck.sources.recording.step_tracker import Cut
from traincheck.vocab.events import END, EVAL, LIVE, PARTIAL, TRAIN

FULL_CALLS = 30_000
"""All windows are described until so many calls were seen (some tenths of a second of work), from then on those of the
schedule."""
SCHEDULE = Schedule(often=10, seldom=25)
"""Of the windows of each stage."""
MAX_CALLS = 20_000
"""A window with more calls is not described (some tenths of a second of work)."""


class DescribingMode(Protocol):
    """What sees the calls."""

    describes: bool
    """Whether calls are described now."""

    def describe_from_now_on(self, on: bool) -> None:
        """Describe calls, or no more, as far as that is possible here: see `describes`."""


class DescribedWindows:
    """Switches the mode on and off, and counts its calls."""

    def __init__(self, recorder: Recorder, mode: DescribingMode, update_noted: Callable[[], object]) -> None:
        """Calls `update_noted` before the first call after an update is described."""
        self.demanded = True
        """Whether descriptions are demanded at all."""
        self.role = LIVE
        """Of what the open window shows: described as a whole, in part or (empty) not at all."""
        self.last_update = -1
        """Where parameters were updated in the open window."""
        self._recorder = recorder
        self._mode = mode
        self._update_noted = update_noted
        self._windows: Counter[str] = Counter()  # by stage
        self._calls = self._all_calls = 0  # in this window, and in all
        self.updates = 0
        """Updates that were made, and noted."""
        self._left_out = False
        mode.describe_from_now_on(True)

    @property
    def all_described(self) -> bool:
        """Whether all windows so far were described, except for the open one."""
        return not self._left_out

    @property
    def too_long(self) -> bool:
        """Whether the open window has too many calls to be described."""
        return self._calls > MAX_CALLS

    def demand(self, demanded: bool) -> None:
        """Describe windows if that is demanded, from the next one on, and otherwise nothing more."""
        self.demanded = demanded
        if not demanded:
            self._mode.describes = False
            self._left_out = True

    def takes_call(self) -> bool:
        """Count a call; whether it is one to describe."""
        self._calls += 1
        self._all_calls += 1
        recorder = self._recorder
        if self._calls > MAX_CALLS or recorder.steps.updates or recorder.queries_program:
            return False
        if self.updates != recorder.steps.updates_made:
            self.note_update()
        return True

    def note_update(self) -> None:
        """Note where the last update ended, if there was one since the last call of this function."""
        if self.updates != self._recorder.steps.updates_made:
            self.updates = self._recorder.steps.updates_made
            self._update_noted()
            self.last_update = self._recorder.next_seq()

    def close(self, cut: Cut) -> bool:
        """The window closes; whether it was described."""
        if cut.stage == END:
            return False
        if not self._mode.describes or self._calls > MAX_CALLS:
            self._left_out = True
            return False
        self.note_update()
        return True

    def begin(self, cut: Cut, calls: int) -> None:
        """The next window begins, which has the last `calls` calls of the window before."""
        opens = cut.opens or TRAIN
        self._windows[opens] += 1
        number = self._windows[opens]
        # To see a training step from its beginning, the end of the one before has to be watched.
        sampled = SCHEDULE.includes(number) or (opens == TRAIN and SCHEDULE.includes(number + 1))
        if opens == EVAL:
            self.role = LIVE
        elif not self._mode.describes or self._calls > MAX_CALLS:
            self.role = ""
        else:
            self.role = LIVE if cut.stage == TRAIN and self.last_update >= 0 else PARTIAL
        self._calls = calls
        self.updates, self.last_update = self._recorder.steps.updates_made, -1
        self._mode.describe_from_now_on(self._recorder.watching and (sampled or self._all_calls < FULL_CALLS))

    def end_of(self, cut: Cut) -> int:
        """Where the lines of the next window begin: after the last update, if it is another step."""
        return self.last_update if cut.stage == TRAIN and cut.opens != EVAL and self.last_update >= 0 else cut.seq
