"""Keeping: the recording of a process, of the windows that are worth it and within the size that was asked for."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from traincheck.errors import OutputError
from traincheck.runtime.recording.retention import LENGTH, MOST_EVENTS, Retention, events_in
from traincheck.trace.rotation import RotatingWriter
from traincheck.vocab.events import TRAIN, Window

LARGE = MOST_EVENTS // 4
"""Events in a row of windows behind which all is told anew, however few they are: what waits in memory is let go of by
such rows."""


class WindowRecorder:
    """Writes windows, as a stage of the pipeline. The writer is made with the first one, which knows its rank.

    Which windows are written is up to `Stretches`, but for those that come while `in_full` says that all are.
    `tell_anew` is called where a row of windows begins that may be read without those before it.
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
        self._begins: deque[int] = deque()  # the windows from which on all was told anew
        self._handed = -1  # the last window that was handed on
        self._length = self._events = 0  # of the windows since all was told anew
        self._over = False  # it cannot be written any more

    @property
    def skipped_steps(self) -> int:
        """Training steps that were not written, as nothing was found around them."""
        return self._retention.skipped_steps

    def feed(self, window: Window) -> None:
        """Write it, or keep it until it is known whether it is written. Raises OutputError."""
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
        """A window is handed on: tell all anew where that is due. Called where windows end."""
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
        """An error was found: the file that is written just now stays. May be called from any thread."""
        if self._writer is not None:
            self._writer.keep()

    def record_around(self) -> None:
        """Something was found, or is looked at more closely: the windows around it are written. From any thread."""
        self._retention.record_around(self._handed)

    def at_rest(self) -> None:
        """No window came for a while: write those that wait, for a program that hangs may be killed."""
        with suppress(OutputError):  # the next window meets it again, and says so
            self._write(self._retention.flush())

    def close(self) -> None:
        """Write the last windows, and end the recording. Raises OutputError."""
        if self._writer is not None:
            self._write(self._retention.flush())
            self._writer.close()

    def _write(self, windows: Iterable[Window]) -> None:
        for window in windows:
            if self._writer is not None:
                self._writer.write(window)

    def _stretch_ends(self, window: Window) -> bool:
        """Whether a stretch ends with this window: by the number of the step, which is the same on all ranks."""
        self._length += 1
        self._events += events_in(window)
        ends = window.stage == TRAIN and (window.step + 1) % LENGTH == 0
        return ends or self._length >= 2 * LENGTH or self._events > LARGE
