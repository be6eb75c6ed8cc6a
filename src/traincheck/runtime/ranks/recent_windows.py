"""Held windows: what a rank keeps of the last steps, to give in full where it is asked for."""

from __future__ import annotations

import threading
from collections import OrderedDict

from traincheck.vocab.events import Window

MOST_HELD = 64
MOST_EVENTS_HELD = 400_000
"""Windows, and events in them, that a rank keeps to be asked for."""


class RecentWindows:
    """The last windows of a rank; of large ones fewer, but always the last. May be used by several threads."""

    def __init__(self, most: int = MOST_HELD) -> None:
        self._most = most
        self._windows: OrderedDict[int, Window] = OrderedDict()
        self._events = 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._windows)

    def add(self, window: Window) -> None:
        """Keep a window, and let go of the oldest ones where there are too many."""
        with self._lock:
            self._windows[window.index] = window
            self._events += _events(window)
            while len(self._windows) > self._most or (len(self._windows) > 1 and self._events > MOST_EVENTS_HELD):
                self._let_go()

    def get(self, index: int) -> Window | None:
        """The window of this index, if it is still there."""
        with self._lock:
            return self._windows.get(index)

    def release(self, index: int) -> None:
        """This one, and those before it, are not asked for any more."""
        with self._lock:
            while self._windows and next(iter(self._windows)) <= index:
                self._let_go()

    def _let_go(self) -> None:
        _, window = self._windows.popitem(last=False)
        self._events -= _events(window)


def _events(window: Window) -> int:
    return len(window.calls) + len(window.changes) + len(window.readings)
