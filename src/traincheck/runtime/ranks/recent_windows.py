"""Keeps the last windows of a rank in memory, so that the comparing rank can request their values."""

from __future__ import annotations

import threading
from collections import OrderedDict

from traincheck.vocab.events import Window

MAX_WINDOWS = 64
MAX_EVENTS_HELD = 400_000
"""The largest numbers of windows and of events in them."""


class RecentWindows:
    """The last windows of a rank: fewer if they are large, but always the last one. It is thread-safe."""

    def __init__(self, most: int = MAX_WINDOWS) -> None:
        self._most = most
        self._windows: OrderedDict[int, Window] = OrderedDict()
        self._events = 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._windows)

    def add(self, window: Window) -> None:
        """Add a window, and drop the oldest ones beyond the limits."""
        with self._lock:
            self._windows[window.index] = window
            self._events += _events(window)
            while len(self._windows) > self._most or (len(self._windows) > 1 and self._events > MAX_EVENTS_HELD):
                self._drop_oldest()

    def get(self, index: int) -> Window | None:
        """The window with this index, None if it was dropped."""
        with self._lock:
            return self._windows.get(index)

    def release(self, index: int) -> None:
        """Drop this window and all before it."""
        with self._lock:
            while self._windows and next(iter(self._windows)) <= index:
                self._drop_oldest()

    def _drop_oldest(self) -> None:
        _, window = self._windows.popitem(last=False)
        self._events -= _events(window)


def _events(window: Window) -> int:
    return len(window.calls) + len(window.changes) + len(window.readings)
