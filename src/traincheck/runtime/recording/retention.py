"""Decides which windows of a checked run are recorded. Recent windows wait in memory for the decision.

Note [Recorded windows of a checked run]
A run is checked while it trains, so its recording is for later inspection. It holds the beginning, the windows around
findings, the end, and regular samples. All other windows are left out.

* A stretch is a row of windows without a gap. At its beginning the sources repeat their one-time reports (settings,
  classes, flags). So a recording holds the first windows of a stretch, up to the last selected window. A reader needs
  no earlier windows after a gap, and relations reset at gaps anyway.
* Windows are recorded in order. A selected window waits until the decision about all earlier windows.
* Without findings, the selection depends on the step number only, so all ranks record the same steps.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Hashable, Iterable, Iterator
from operator import itemgetter

from traincheck.vocab.events import EVAL, TRAIN, Call, Reading, Window

FIRST_STEPS = 20
"""Recorded steps at the start: twenty steps establish each habit that rules use."""

FIRST_EVALUATIONS = 3
"""Recorded evaluations at the start."""

IN_A_ROW = 2
"""Consecutive steps per later sample: many rules compare two consecutive steps."""

FARTHEST = 1_000
"""Largest distance in steps between two samples. Each sample is half its step number further, up to this distance."""

LENGTH = 16
"""Steps of a stretch. Repeating the one-time reports costs a few readings of each parameter and module, which is cheap
for every sixteenth step."""

BEFORE, AFTER = 4, 8
"""Recorded windows before and after a finding. Up to a stretch more may precede it."""

MAX_EVENTS = 100_000
"""Events in all waiting windows: about 40 MB. Fewer windows wait if they are large."""

MAX_NEW = 100
"""Windows that are recorded for a first sighting. The limit is for programs that create names without end."""


class _Stretch:
    """Consecutive windows that wait, and how many of them are selected for recording."""

    __slots__ = ("broken", "chosen", "events", "length", "sampled", "waiting")

    def __init__(self) -> None:
        self.waiting: deque[Window] = deque()
        self.length = 0
        self.chosen = 0
        self.events = 0
        self.sampled = False
        self.broken = False  # some of its windows were dropped, so later windows cannot be recorded

    def add(self, window: Window) -> None:
        self.waiting.append(window)
        self.length += 1
        self.events += events_in(window)

    def choose(self) -> None:
        """Select all windows so far."""
        self.chosen = len(self.waiting)

    def take(self) -> Iterator[Window]:
        """Remove the selected windows and yield them."""
        while self.chosen:
            self.chosen -= 1
            window = self.waiting.popleft()
            self.events -= events_in(window)
            yield window


class Retention:
    """Takes all windows in order, and yields the windows to record, in order.

    You may call `record_around` from any thread, and the other methods from one thread. `skipped_steps` counts the
    training steps that are never recorded.
    """

    def __init__(self, most_events: int = MAX_EVENTS) -> None:
        self._most_events = most_events
        self._held: deque[_Stretch] = deque()
        self._follows = -1
        self._steps = _Spread(FIRST_STEPS)
        self._evaluations = _Spread(FIRST_EVALUATIONS)
        self._evaluated = 0
        self._news = _FirstSightings()
        self._until = -1
        self._flush = threading.Event()
        self.skipped_steps = 0

    def feed(self, window: Window, *, begins: bool, chosen: bool = False) -> Iterator[Window]:
        """Add a window and yield the windows to record by now.

        `begins` says that the sources repeat their one-time reports in this window. `chosen` selects it in any case.
        """
        stretch = self._stretch_of(window, begins)
        is_recorded = chosen or self._is_recorded(window, stretch)
        if stretch.broken:
            self._skip([window])
            return
        stretch.add(window)
        if is_recorded:
            stretch.choose()
        if self._flush.is_set():
            self._flush.clear()
            for held in self._held:
                held.choose()
        yield from self._ready()

    def record_around(self, index: int) -> None:
        """Record the windows around a finding in window `index` or earlier. You may call this from any thread."""
        self._until = max(self._until, index + AFTER)
        self._flush.set()

    def flush(self) -> Iterator[Window]:
        """Yield all waiting windows, because the run has ended or may have ended."""
        for stretch in self._held:
            stretch.choose()
            yield from stretch.take()
        while len(self._held) > 1:
            self._held.popleft()

    def clear(self) -> None:
        """Drop the waiting windows."""
        self._held.clear()

    @property
    def waiting(self) -> list[Window]:
        """The waiting windows."""
        return [window for stretch in self._held for window in stretch.waiting]

    def _stretch_of(self, window: Window, begins: bool) -> _Stretch:
        if begins or window.index != self._follows or not self._held:
            self._held.append(_Stretch())
        self._follows = window.index + 1
        return self._held[-1]

    def _is_recorded(self, window: Window, stretch: _Stretch) -> bool:
        """Whether to record this window, as far as known now. Called once per window."""
        new = self._news.has_new(window)
        if window.stage == EVAL:
            self._evaluated += 1
            is_sampled = self._evaluations.takes(self._evaluated)
        elif window.stage == TRAIN and window.step > FIRST_STEPS:
            if not stretch.length:
                stretch.sampled = self._steps.takes(window.step)
            is_sampled = stretch.sampled and stretch.length < IN_A_ROW
        else:
            is_sampled = True
        return is_sampled or new or window.index <= self._until

    def _ready(self) -> Iterator[Window]:
        while True:
            oldest = self._held[0]
            yield from oldest.take()
            if len(self._held) == 1:
                break
            if oldest.waiting and not self._too_many(oldest):
                return
            self._skip(oldest.waiting)
            self._held.popleft()
        if oldest.events > self._most_events and len(oldest.waiting) > 1:  # no new stretch has begun
            self._skip(oldest.waiting)
            oldest.waiting.clear()
            oldest.events, oldest.broken = 0, True

    def _too_many(self, oldest: _Stretch) -> bool:
        later = sum(len(stretch.waiting) for stretch in self._held) - len(oldest.waiting)
        return later >= BEFORE or sum(stretch.events for stretch in self._held) > self._most_events

    def _skip(self, windows: Iterable[Window]) -> None:
        self.skipped_steps += sum(window.stage == TRAIN for window in windows)


class _Spread:
    """Selects numbers at growing distances: all up to `first`, then each by half further, at most `FARTHEST`.

    The selection does not depend on earlier queries, so that ranks with different queries agree.
    """

    def __init__(self, first: int) -> None:
        self._first = first
        self._next = first + 1

    def takes(self, number: int) -> bool:
        """Whether this number is selected, or is the first query after a selected number."""
        if number <= self._first:
            return True
        taken = number >= self._next
        while self._next <= number:
            self._next += min(FARTHEST, max(1, self._next // 2))
        return taken


_LEVELS = itemgetter(Call._fields.index("levels"))
_READ = itemgetter(*map(Reading._fields.index, ("variable", "kind", "attribute", "role")))


class _FirstSightings:
    """Remembers the called APIs and the readings of each kind of variable."""

    def __init__(self) -> None:
        self._calls: set[Hashable] = set()
        self._readings: set[Hashable] = set()
        self._times = 0

    def has_new(self, window: Window) -> bool:
        """Whether this window holds a call or reading that no earlier window had."""
        if self._times >= MAX_NEW:
            return False
        calls = set(map(_LEVELS, window.calls))
        readings = set(map(_READ, window.readings))
        new = not (calls <= self._calls and readings <= self._readings)
        if new:
            self._times += 1
            self._calls |= calls
            self._readings |= readings
        return new


def events_in(window: Window) -> int:
    """Number of events in a window."""
    return len(window.calls) + len(window.changes) + len(window.readings)
