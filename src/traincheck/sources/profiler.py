"""Profiler: Python's profiler of a thread, as long as it is the one that sees the project's functions."""

from __future__ import annotations

import sys
import threading
from typing import Any


class Profiler(threading.local):
    """The profiler that we have set in a thread, if any: Python calls it for every function that the thread enters.

    It does so for ours as well, which would double the cost of what we do; so it is taken off while we are at work. A
    profiler of the program's own stays. `aside` is True while the thread does nothing that would be told of; `helpers`
    counts the calls under way of functions of the project that are not told of any more.
    """

    def __init__(self) -> None:
        self.ours: Any = None
        self.aside = False
        self.helpers = 0
        self._was_on = False

    def pause(self) -> bool:
        """Take our profiler off; whether it was on."""
        if self.ours is None or sys.getprofile() is not self.ours:
            return False
        sys.setprofile(None)
        return True

    def resume(self) -> None:
        """Put our profiler on again, after `pause` has taken it off."""
        if self.aside:
            self._was_on = True
        else:
            sys.setprofile(self.ours)

    def look_away(self) -> None:
        """What the thread does from here on is not told of, until `look_again`. Call while paused."""
        self.aside, self._was_on = True, False

    def look_again(self) -> None:
        """Take `look_away` back."""
        if self.aside:
            self.aside = False
            if self._was_on and sys.getprofile() is None:
                sys.setprofile(self.ours)
