"""Writes the selected windows of a process, within the requested size."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from traincheck.errors import OutputError
from traincheck.runtime.recording.retention import LENGTH, MAX_EVENTS, Retention, events_in
from traincheck.trace.rotation import RotatingWriter
from traincheck.vocab.events import TRAIN, Window

LARGE = MAX_EVENTS // 4
"""Events after which a new stretch begins, even with few windows. Memory is freed one stretch at a time."""


class WindowRecorder:
    """Writes windows, as a stage of the pipeline. It creates the writer with the first window, which has the rank.

    `Retention` selects the windows, except while `in_full` returns True, which selects all. The recorder calls
    `repeat_reports` before a new stretch, which a reader can understand without earlier windows.
    """

    def __init__(
        self,
        folder: Path,
        process: int,
        most: int,
        repeat_reports: Callable[[], object],
        in_full: Callable[[], bool] = lambda: True,
    ) -> None:
        self._folder = folder
        self._process = process
        self._most = most
        self._repeat_reports = repeat_reports
        self._in_full = in_full
        self._writer: RotatingWriter | None = None
        self._full = threading.Event()
        self._retention = Retention()
        self._begins: deque[int] = deque()  # first windows of stretches: the sources repeat their reports there
        self._handed = -1  # index of the latest closed window
        self._length = self._events = 0  # of the current stretch
        self._over = False  # after a write error

    @property
    def skipped_steps(self) -> int:
        """Training steps that were not written, because no finding was near them."""
        return self._retention.skipped_steps

    def feed(self, window: Window) -> None:
        """Write the window, or hold it until the decision. Raises OutputError."""
        if self._writer is None:
            self._writer = RotatingWriter(self._folder, window.rank, self._process, self._most, on_full=self._full.set)
        begins = False
        while self._begins and self._begins[0] <= window.index:
            self._begins.popleft()
            begins = True
        try:
            self._write(self._retention.feed(window, begins=begins, chosen=self._in_full()))
        except BaseException:
            self._over = True
            self._retention.clear()
            raise

    def window_closed(self, window: Window, *, is_burst: bool = False) -> None:
        """Begin a new stretch if necessary. Called when a window ends."""
        self._handed = window.index
        if self._over:
            return
        if is_burst:
            self.record_around()
        full = self._full.is_set()
        if full or (self._stretch_ends(window) and not self._in_full()):
            self._full.clear()
            self._length = self._events = 0
            self._repeat_reports()
            self._begins.append(window.index + 1)
            if full and self._writer is not None:
                self._writer.begin_at(window.index + 1)

    def keep_file(self) -> None:
        """Keep the current file, because it holds an error. You may call this from any thread."""
        if self._writer is not None:
            self._writer.keep()

    def record_around(self) -> None:
        """Record the windows around the current window, for a finding or a burst. You may call this from any thread."""
        self._retention.record_around(self._handed)

    def at_rest(self) -> None:
        """Write the waiting windows, because a program that hangs may be killed. Called when no window came for a
        while."""
        with suppress(OutputError):  # the next window raises it again and reports it
            self._write(self._retention.flush())

    def close(self) -> None:
        """Write the last windows and close the file. Raises OutputError."""
        if self._writer is not None:
            self._write(self._retention.flush())
            self._writer.close()

    def _write(self, windows: Iterable[Window]) -> None:
        for window in windows:
            if self._writer is not None:
                self._writer.write(window)

    def _stretch_ends(self, window: Window) -> bool:
        """Whether a stretch ends with this window. The step number decides, so that all ranks agree."""
        self._length += 1
        self._events += events_in(window)
        ends = window.stage == TRAIN and (window.step + 1) % LENGTH == 0
        return ends or self._length >= 2 * LENGTH or self._events > LARGE
