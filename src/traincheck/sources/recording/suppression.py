"""Stops recording functions in a thread while torch does its own work there: a loader fetches, an optimizer steps."""

from __future__ import annotations

import threading

from traincheck.sources.recording.global_hooks import GlobalHooks, insert_mode, remove_mode
from traincheck.sources.recording.thread_profiler import ThreadProfiler


class Suppression(threading.local):
    """Removes TrainCheck's function mode and profiler of a thread, for a call of a mode that records nothing costs as
    much as many of the functions themselves."""

    def __init__(self, hooks: GlobalHooks, profiler: ThreadProfiler) -> None:
        self._hooks = hooks
        self._profiler = profiler
        self._mode_index = -1  # on the stack of modes

    def begin(self) -> None:
        """Record no functions of this thread from now on. Call while the profiler is paused."""
        self._profiler.suppress()
        if self._mode_index < 0:
            self._mode_index = remove_mode(self._hooks.mode)

    def end(self) -> None:
        """Undo `begin`, if it was called."""
        if self._profiler.suppressed:
            index, self._mode_index = self._mode_index, -1
            if index >= 0 and not self._hooks.mode.off:
                insert_mode(self._hooks.mode, index)
            self._profiler.unsuppress()
