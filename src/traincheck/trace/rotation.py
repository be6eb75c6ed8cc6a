"""Rotation: the recording of a long run in segments, of which those in the middle are removed when there are too many.

Note [What is kept]
A run of a month is not recorded in full. What is looked for later is how it began (the set-up, the warm-up), how it
went when something was found, and how it ended. So the first segment stays, a few stay that were asked to (`keep`), and
of the others the oldest go. What is left has gaps, as windows that were not watched leave them, and is read as such.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from traincheck.errors import OutputError
from traincheck.trace.format import EVENTS
from traincheck.trace.schema import Steps
from traincheck.trace.writer import TraceWriter
from traincheck.vocab.events import TRAIN, Window

SEGMENTS = 16
"""A recording has so many at the most: what is removed at a time is a sixteenth of it."""

MOST_KEPT = 6
"""Segments that stay because something was found in them: less than half, so that the end is told as well."""


@dataclass(slots=True)
class _Segment:
    """One file of a recording: the training steps in it, and its bytes."""

    number: int
    steps: Steps | None = None
    size: int = 0


class RotatingWriter:
    """Writes the windows of a process, as `TraceWriter` does, into files that hold `most` bytes together.

    A segment that is full is followed by another one. What is told once has to be told again in it, so `on_full` is
    called, and `begin_at` says with which window it begins; without `on_full` it begins at once. `most` may be
    exceeded by the size of one window, and 0 is no limit. Methods raise OutputError; `begin_at` and `keep` may be
    called from other threads.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        rank: int,
        process: int,
        most: int,
        prefix: str = EVENTS,
        on_full: Callable[[], None] | None = None,
    ) -> None:
        self._of = (folder, rank, process, prefix)
        self._most = most
        self._on_full = on_full
        self._writer = TraceWriter(*self._of)
        self._pid = os.getpid()
        self._full = False
        self._begin_at: int | None = None
        self._segments = [_Segment(1)]  # those that are there; the last one is being written
        self._kept: list[int] = []
        self._removed: list[Steps] = []

    def write(self, window: Window) -> None:
        """Append a window and hand it to the operating system."""
        if self._full and self._may_begin(window) and os.getpid() == self._pid:
            self._next()
        self._writer.write(window)
        written = self._segments[-1]
        written.size = self._writer.bytes_written
        if window.stage == TRAIN:
            written.steps = (written.steps[0] if written.steps else window.step, window.step)
        if self._most and not self._full and written.size >= self._most // SEGMENTS:
            self._full = True
            if self._on_full is not None:
                self._on_full()

    def _may_begin(self, window: Window) -> bool:
        return self._on_full is None or (self._begin_at is not None and window.index >= self._begin_at)

    def begin_at(self, index: int) -> None:
        """The next segment begins with the window of this index, or the first one behind it."""
        self._begin_at = index

    def keep(self) -> None:
        """Something was found: the segment that is being written stays, and the one behind it, if there are not too
        many yet."""
        number = self._segments[-1].number
        self._kept += [kept for kept in (number, number + 1) if kept not in self._kept]
        del self._kept[MOST_KEPT:]

    def close(self) -> None:
        """End the recording; further calls do nothing."""
        self._writer.close()

    def _next(self) -> None:
        self._make_room()
        number = self._segments[-1].number + 1
        writer = TraceWriter(*self._of, segment=number, removed=self._removed)
        writer.begin()  # before the last one ends: who follows the recording looks for this one there
        self._writer.close()
        self._writer, self._full, self._begin_at = writer, False, None
        self._segments.append(_Segment(number))

    def _make_room(self) -> None:
        """Remove segments until another one has room."""
        room = self._most - self._most // SEGMENTS
        while sum(segment.size for segment in self._segments) > room:
            middle = self._segments[1:-1]
            free = [segment for segment in middle if segment.number not in self._kept] or middle
            if not free:
                return
            self._remove(free[0])

    def _remove(self, segment: _Segment) -> None:
        path = TraceWriter(*self._of, segment=segment.number).path
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise OutputError(path, error.strerror or str(error)) from error
        self._segments.remove(segment)
        if segment.steps:
            self._removed = _joined([*self._removed, segment.steps])


def _joined(rows: Iterable[Steps]) -> list[Steps]:
    """Rows of steps, those that touch as one."""
    joined: list[Steps] = []
    for first, last in sorted(rows):
        if joined and first <= joined[-1][1] + 1:
            joined[-1] = (joined[-1][0], max(last, joined[-1][1]))
        else:
            joined.append((first, last))
    return joined
