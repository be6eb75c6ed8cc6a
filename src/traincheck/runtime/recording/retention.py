"""Stretches: which windows of a checked run go into its recording; the last ones wait in memory for it to be known.

Note [What is recorded of a checked run]
A run is checked while it trains, so its recording is for those who look at it afterwards: how it began, what happened
around a finding, how it ended, and now and then how it went. The windows of all other steps are left out.

* A stretch is a row of windows without a gap. At its beginning the sources tell anew what they tell once (settings,
  classes, flags), so of a stretch only its first windows are recorded, up to some one: what is read behind a gap can be
  understood, and relations forget at gaps anyway.
* Windows are recorded in order. So one that is to be recorded waits until it is known whether those before it are.
* Which steps are recorded, where nothing is found, depends on their number only: all ranks record the same.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Hashable, Iterable, Iterator
from operator import itemgetter

from traincheck.vocab.events import EVAL, TRAIN, Call, Reading, Window

FIRST_STEPS = 20
"""Steps at the start that are recorded: twenty establish each habit that rules know of."""

FIRST_EVALUATIONS = 3
"""Evaluations at the start that are recorded."""

IN_A_ROW = 2
"""Steps that are recorded at a time later on: many rules tell of what happens from one step to the next."""

FARTHEST = 1_000
"""The distance, in steps, between two such pairs, which grows with half of the way so far."""

LENGTH = 16
"""Steps of a stretch. To tell all anew takes as long as some readings of each parameter and module, which is little for
every sixteenth step."""

BEFORE, AFTER = 4, 8
"""Windows before a finding that are recorded, and behind it; before it there are up to a stretch more."""

MOST_EVENTS = 100_000
"""Events in the windows that wait: some 40 MB. Where windows are larger, there are fewer of them."""

MOST_NEW = 100
"""Windows in which something was told for the first time, and that are recorded for it: a program may make up names
without end."""


class _Stretch:
    """A row of windows: those of them that wait, and how many of these are to be recorded."""

    __slots__ = ("broken", "chosen", "events", "length", "sampled", "waiting")

    def __init__(self) -> None:
        self.waiting: deque[Window] = deque()
        self.length = 0
        self.chosen = 0
        self.events = 0
        self.sampled = False
        self.broken = False  # windows of it were let go of, so that what follows them cannot be recorded

    def add(self, window: Window) -> None:
        self.waiting.append(window)
        self.length += 1
        self.events += events_in(window)

    def choose(self) -> None:
        """All windows so far are to be recorded."""
        self.chosen = len(self.waiting)

    def take(self) -> Iterator[Window]:
        """Those that are to be recorded; they wait no more."""
        while self.chosen:
            self.chosen -= 1
            window = self.waiting.popleft()
            self.events -= events_in(window)
            yield window


class Retention:
    """Takes all windows in order, and gives those that are to be recorded, in order. From one thread, but `around`.

    `left_out` counts the training steps that were not given and will not be.
    """

    def __init__(self, most_events: int = MOST_EVENTS) -> None:
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
        """What is to be recorded by now. `begins` says that all is told anew from this window on, `chosen` that it is
        to be recorded in any case."""
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
        """Something was found in the window of this index, or in one before it. May be called from any thread."""
        self._until = max(self._until, index + AFTER)
        self._flush.set()

    def flush(self) -> Iterator[Window]:
        """All that wait are recorded: the run has ended, well or not, or it may have."""
        for stretch in self._held:
            stretch.choose()
            yield from stretch.take()
        while len(self._held) > 1:
            self._held.popleft()

    def clear(self) -> None:
        """Nothing more is recorded: let go of what waits."""
        self._held.clear()

    @property
    def waiting(self) -> list[Window]:
        """The windows that wait."""
        return [window for stretch in self._held for window in stretch.waiting]

    def _stretch_of(self, window: Window, begins: bool) -> _Stretch:
        if begins or window.index != self._follows or not self._held:
            self._held.append(_Stretch())
        self._follows = window.index + 1
        return self._held[-1]

    def _is_recorded(self, window: Window, stretch: _Stretch) -> bool:
        """Whether this window is to be recorded, as far as it is known by now. Asked once for each."""
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
        if oldest.events > self._most_events and len(oldest.waiting) > 1:  # nobody lets a new stretch begin
            self._skip(oldest.waiting)
            oldest.waiting.clear()
            oldest.events, oldest.broken = 0, True

    def _too_many(self, oldest: _Stretch) -> bool:
        later = sum(len(stretch.waiting) for stretch in self._held) - len(oldest.waiting)
        return later >= BEFORE or sum(stretch.events for stretch in self._held) > self._most_events

    def _skip(self, windows: Iterable[Window]) -> None:
        self.skipped_steps += sum(window.stage == TRAIN for window in windows)


class _Spread:
    """Numbers in growing distance: all up to `first`, then each by half of the last one further, up to `FARTHEST`.

    Which they are does not depend on what was asked, so that ranks agree that were not asked the same so far.
    """

    def __init__(self, first: int) -> None:
        self._first = first
        self._next = first + 1

    def takes(self, number: int) -> bool:
        """Whether this number is one of them, or the first that is asked for behind one."""
        if number <= self._first:
            return True
        taken = number >= self._next
        while self._next <= number:
            self._next += min(FARTHEST, max(1, self._next // 2))
        return taken


_LEVELS = itemgetter(Call._fields.index("levels"))
_READ = itemgetter(*map(Reading._fields.index, ("variable", "kind", "attribute", "role")))


class _FirstSightings:
    """Knows what was told so far: which APIs were called, and what was read of which things."""

    def __init__(self) -> None:
        self._calls: set[Hashable] = set()
        self._readings: set[Hashable] = set()
        self._times = 0

    def has_new(self, window: Window) -> bool:
        """Whether something is told in this window that was in none before it."""
        if self._times >= MOST_NEW:
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
    """How many events a window holds."""
    return len(window.calls) + len(window.changes) + len(window.readings)
