"""Measures how long TrainCheck's own work takes on the threads of the program, by source, and how long windows take."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

from traincheck.sources.tensors import hashing


class Lap(NamedTuple):
    """Seconds of a window, and how many of them TrainCheck took; the mean of so many `windows`."""

    wall: float
    overhead: float
    windows: int = 1


class OverheadMeter:
    """Adds up the time of guarded functions, each without the guarded functions inside it.

    The code that measures reads `clock` before and after, and adds the difference, less `inside`, to `total` and to the
    counter of its source. It leaves in `inside` the time that the function around it has to subtract. Callers write
    this out: it runs twice a call and takes a tenth of a microsecond. Where functions run in two threads at once,
    `total` counts the time once, so the counter of one source may be too low and that of another too high.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.clock = clock
        self.inside = 0.0
        self.total = 0.0
        self._counters: dict[str, list[float]] = {}
        self._last_time = clock()
        self._last_total = 0.0

    def counter(self, source: str) -> list[float]:
        """The seconds of `source`, as the only element of a list that callers add to."""
        return self._counters.setdefault(source, [0.0])

    def seconds(self) -> dict[str, float]:
        """The seconds of each source so far."""
        return {source: counter[0] for source, counter in self._counters.items() if counter[0] > 0}

    def hashing(self) -> dict[str, Any]:
        """The bytes hashed so far and the seconds that took, as fields of a `ProcessNote`."""
        return {"hashed": hashing.totals.size, "hashing": hashing.totals.seconds}

    def lap(self, windows: int = 1) -> Lap:
        """The time since the last lap, in which so many windows were closed."""
        now, total = self.clock(), self.total
        lap = Lap((now - self._last_time) / windows, (total - self._last_total) / windows, windows)
        self._last_time, self._last_total = now, total
        return lap
