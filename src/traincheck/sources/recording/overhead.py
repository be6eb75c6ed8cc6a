"""The meter: how long our own work takes on the threads of the program, by source, and how long windows take."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

from traincheck.sources.tensors import hashing


class Lap(NamedTuple):
    """Seconds from one cut to the next, and of these the ones that our own work took."""

    wall: float
    ours: float


class Meter:
    """Adds up what guarded functions take, each without those inside it.

    Who measures reads `clock` before and after, adds the difference to `total` and to its own entry (see `of`), less
    `inside`, and leaves in `inside` what the one around it has to leave out. That is written out where it is done,
    twice a call, and takes a tenth of a microsecond. Of functions at work in two threads at once the time counts once:
    one source may be told less than it took, and another more.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.clock = clock
        self.inside = 0.0
        self.total = 0.0
        self._spent: dict[str, list[float]] = {}
        self._last = clock()
        self._ours = 0.0

    def of(self, source: str) -> list[float]:
        """Where the seconds of `source` are added up: the only element of this list."""
        return self._spent.setdefault(source, [0.0])

    def seconds(self) -> dict[str, float]:
        """By source, what it took so far."""
        return {source: spent[0] for source, spent in self._spent.items() if spent[0] > 0}

    def hashing(self) -> dict[str, Any]:
        """The bytes that were hashed so far, and the seconds that took: what else a `ProcessNote` tells of the cost."""
        return {"hashed": hashing.done.size, "hashing": hashing.done.seconds}

    def lap(self) -> Lap:
        """The time since the last lap."""
        now, ours = self.clock(), self.total
        lap = Lap(now - self._last, ours - self._ours)
        self._last, self._ours = now, ours
        return lap
