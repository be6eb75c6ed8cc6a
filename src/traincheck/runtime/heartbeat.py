"""The heartbeat: an observed process writes down now and then how it fares, for those who look from outside.

Note [Signs of life]
On the pipeline's thread, never on the one that trains, a process rewrites its note and what was found so far: at once
when something was found, every `BEAT` seconds while windows flow, and every `AT_REST` seconds while none come. So who
looks from outside can tell a process that is busy with something else (a long evaluation, a hang) from one that is
gone.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from traincheck.vocab.events import Window

BEAT = 2.0
"""Seconds between two beats while windows flow: soon enough for people, seldom enough for a shared file system."""

AT_REST = 10.0
"""Seconds between two beats while no window comes."""

SLOWEST = 30.0
"""Seconds between two beats where writing them takes long; a process that is silent for longer is gone."""

MOST_CPU, MOST_WAITING = 0.005, 0.1
"""Shares of the time that beats may take: of a core, which the training may want, and of waiting for the disk."""


class Heartbeat:
    """A stage of the pipeline, which also asks it what to do while no window comes.

    `write` writes everything; `is_urgent` says that something is not to wait. An error of `write` is told once, until
    it succeeds again, through `on_fault`; the beats go on, for a disk that is full may not stay so. `at_rest` is called
    with each beat before which no window came.
    """

    def __init__(
        self,
        write: Callable[[], None],
        is_urgent: Callable[[], bool],
        on_fault: Callable[[Exception], None],
        now: Callable[[], float] = time.monotonic,
        at_rest: Callable[[], object] = lambda: None,
    ) -> None:
        self._write = write
        self._is_urgent = is_urgent
        self._on_fault = on_fault
        self._now = now
        self._at_rest = at_rest
        self._last = now()
        self._begun = False
        self._pace = BEAT
        self._flowing = False
        self._failed = False

    def feed(self, window: Window) -> None:
        """A window came."""
        urgent = not self._begun or (self._is_urgent() and not self._failed)
        self._flowing = self._begun = True
        if urgent or self.rest() <= 0:
            self.beat()

    def rest(self) -> float:
        """Seconds until something is to be done if no window comes."""
        pause = self._pace if self._flowing else max(self._pace, AT_REST)
        return max(0.0, self._last + pause - self._now())

    def beat(self) -> None:
        """Write everything. Raises nothing."""
        began, computed = self._now(), time.thread_time()
        try:
            if not self._flowing:
                self._at_rest()
            self._write()
            self._failed = False
        except Exception as error:  # of the disk, or a fault of ours: neither is to end what else this thread does
            if not self._failed:
                self._failed = True
                self._on_fault(error)
        self._last, self._flowing = self._now(), False
        took = max((self._last - began) / MOST_WAITING, (time.thread_time() - computed) / MOST_CPU)
        self._pace = min(max(BEAT, took), SLOWEST)
