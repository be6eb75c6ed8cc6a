"""Aside: a thread does what is torch's own affair (its loader fetches, its optimizer steps): nothing is told of it."""

from __future__ import annotations

import threading

from traincheck.sources.recording.global_hooks import Hooks, put_on, taken_off
from traincheck.sources.recording.thread_profiler import Profiler


class Aside(threading.local):
    """Takes our mode and our profiler off meanwhile: to be asked about each function and not to tell of it costs as
    much as many of these functions take."""

    def __init__(self, hooks: Hooks, profiler: Profiler) -> None:
        self._hooks = hooks
        self._profiler = profiler
        self._place = -1  # of our mode on the stack

    def begin(self) -> None:
        """From here on nothing is told of this thread. Call while the profiler is paused."""
        self._profiler.look_away()
        if self._place < 0:
            self._place = taken_off(self._hooks.mode)

    def end(self) -> None:
        """Take `begin` back, if it was called."""
        if self._profiler.aside:
            place, self._place = self._place, -1
            if place >= 0 and not self._hooks.mode.off:
                put_on(self._hooks.mode, place)
            self._profiler.look_again()
