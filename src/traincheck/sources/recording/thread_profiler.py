"""Profiler: Python's profiler of a thread, as long as it is the one that sees the project's functions."""

from __future__ import annotations

import sys
import threading
from typing import Any


class Profiler(threading.local):
    """The profiler that we have set in a thread, if any: Python calls it for every function that the thread enters.

    It does so for ours as well, which would double the cost of what we do; so it is taken off while we are at work. A
    profiler of the program's own stays. `aside` is True while the thread does nothing that would be told of; `helpers`
    counts the calls under way of functions of the project that are not told of any more. It is `off` while nobody asks.
    """

    def __init__(self) -> None:
        self.ours: Any = None
        self.aside = False
        self.helpers = 0
        self.off = False
        self.paused = False
        self._was_on = False

    def pause(self) -> bool:
        """Take our profiler off; whether `resume` is to be called."""
        if self.aside:
            if self.paused or not self._was_on:
                return False
        elif self.ours is None or sys.getprofile() is not self.ours:
            return False
        else:
            sys.setprofile(None)
        self.paused = True
        return True

    def resume(self) -> None:
        """Put our profiler on again, after `pause`, where the program has not put one of its own there."""
        self.paused = False
        if self.off:
            return
        if self.aside:
            self._was_on = True
        elif sys.getprofile() is None:
            sys.setprofile(self.ours)

    def look_away(self) -> None:
        """What the thread does from here on is not told of, until `look_again`. Call while paused."""
        self.aside, self._was_on = True, False

    def look_again(self) -> None:
        """Take `look_away` back."""
        if self.aside:
            self.aside = False
            if self._was_on and not (self.paused or self.off) and sys.getprofile() is None:
                sys.setprofile(self.ours)


class ThreadProfiler:
    """Takes the profiler of the thread that makes this off and puts it on again, see `Costly`.

    `opened` holds the calls under way; their ends are not seen while it is off, so they are let go of.
    """

    def __init__(self, profiler: Profiler, opened: list[Any]) -> None:
        self._profiler = profiler
        self._opened = opened
        self._thread = threading.get_ident()
        self._off = False

    def take_off(self) -> None:
        """See `Costly`. A profiler of the program's own stays."""
        profiler = self._profiler
        if self._off or threading.get_ident() != self._thread or profiler.ours is None:
            return
        if profiler.paused or sys.getprofile() is profiler.ours:
            self._off = profiler.off = True
            self._opened.clear()
            profiler.helpers = 0
            sys.setprofile(None)

    def may_put_on(self) -> bool:
        """See `Costly`."""
        return not self._off or threading.get_ident() == self._thread

    def put_on(self) -> None:
        """See `Costly`. Where the program has a profiler of its own by now, that stays."""
        if self._off:
            self._off = self._profiler.off = False
            if sys.getprofile() is None:
                sys.setprofile(self._profiler.ours)
