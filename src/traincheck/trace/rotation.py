"""Write the recording of a long run in segments, and remove segments from the middle if it grows too large.

Note [Kept segments]
TrainCheck does not keep the full recording of a month-long run. You later need its beginning (set-up, warm-up), the
steps around findings, and its end. So the first segment stays, a few segments with findings stay (`keep`), and the
oldest of the others are removed. The recording then has gaps, like those of steps that were not observed.
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
"""Maximum number of segments: each removal frees a sixteenth of the recording."""

MAX_KEPT = 6
"""Maximum number of segments to keep for findings: less than half, so that the end is recorded as well."""


@dataclass(slots=True)
class _Segment:
    """A file of a recording: its number, training steps and size in bytes."""

    number: int
    steps: Steps | None = None
    size: int = 0


class RotatingWriter:
    """Writes the windows of a process, like `TraceWriter`, into files of at most `most` bytes together.

    A full segment is followed by another one, which must repeat everything that is written only once. So the writer
    calls `on_full`, and you call `begin_at` with the first window of the next segment. Without `on_full`, the next
    segment begins at once. One window may exceed `most`; 0 means no limit. Methods raise OutputError. `begin_at` and
    `keep` may be called from other threads.
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
        """Append a window and pass it to the operating system."""
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
        """Begin the next segment with the window of this index, or the first one after it."""
        self._begin_at = index

    def keep(self) -> None:
        """Keep the current segment and the next one because of a finding, up to `MAX_KEPT` segments."""
        number = self._segments[-1].number
        self._kept += [kept for kept in (number, number + 1) if kept not in self._kept]
        del self._kept[MAX_KEPT:]

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
        """Remove segments until there is room for another one."""
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
    """Merge adjacent ranges of steps."""
    joined: list[Steps] = []
    for first, last in sorted(rows):
        if joined and first <= joined[-1][1] + 1:
            joined[-1] = (joined[-1][0], max(last, joined[-1][1]))
        else:
            joined.append((first, last))
    return joined
