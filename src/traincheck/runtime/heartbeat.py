"""Writes a process's status at intervals, for commands that monitor the run from outside.

Note [Status for monitors]
The pipeline's thread, never the training thread, rewrites the note of the process and its findings. It writes at once
after a finding, every `BEAT` seconds while windows arrive, and every `AT_REST` seconds without windows. So a monitor
can distinguish a busy process (a long evaluation, a hang) from an ended process.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from traincheck.vocab.events import Window

BEAT = 2.0
"""Seconds between two beats while windows arrive: soon enough for people, rare enough for a shared file system."""

AT_REST = 10.0
"""Seconds between two beats without windows."""

SLOWEST = 30.0
"""Largest pause in seconds, if writing is slow. A process that is silent for longer has ended."""

MAX_CPU, MAX_WAITING = 0.005, 0.1
"""Shares of the time that beats may use: of a core, which the training may need, and of waiting for the disk."""


class Heartbeat:
    """A stage of the pipeline that also works while no window arrives.

    `write` writes the status, and `is_urgent` requests a beat at once. `on_fault` gets an error of `write` once, until
    a `write` succeeds again. The beats continue, because a full disk may get space again. `at_rest` is called with each
    beat that has no window before it.
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
        """Beat if a beat is due or urgent."""
        urgent = not self._begun or (self._is_urgent() and not self._failed)
        self._flowing = self._begun = True
        if urgent or self.rest() <= 0:
            self.beat()

    def rest(self) -> float:
        """Seconds until the next beat if no window arrives."""
        pause = self._pace if self._flowing else max(self._pace, AT_REST)
        return max(0.0, self._last + pause - self._now())

    def beat(self) -> None:
        """Write the status. Raises nothing."""
        began, computed = self._now(), time.thread_time()
        try:
            if not self._flowing:
                self._at_rest()
            self._write()
            self._failed = False
        except Exception as error:  # a disk error or our own bug must not end this thread
            if not self._failed:
                self._failed = True
                self._on_fault(error)
        self._last, self._flowing = self._now(), False
        took = max((self._last - began) / MAX_WAITING, (time.thread_time() - computed) / MAX_CPU)
        self._pace = min(max(BEAT, took), SLOWEST)
