"""Keeping: the recording of a process, within the size that was asked for."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from traincheck.trace.rotation import RotatingWriter
from traincheck.vocab.events import Window


class Keeping:
    """Writes windows, as a stage of the pipeline. The writer is made with the first one, which knows its rank."""

    def __init__(self, folder: Path, process: int, most: int, tell_anew: Callable[[], object]) -> None:
        self._folder = folder
        self._process = process
        self._most = most
        self._tell_anew = tell_anew
        self._writer: RotatingWriter | None = None
        self._full = threading.Event()

    def feed(self, window: Window) -> None:
        """Write it. Raises OutputError."""
        if self._writer is None:
            self._writer = RotatingWriter(self._folder, window.rank, self._process, self._most, on_full=self._full.set)
        self._writer.write(window)

    def closed(self, window: Window) -> None:
        """A window was handed on: where a file is full, the next one begins behind it. Called where windows end."""
        if self._full.is_set() and self._writer is not None:
            self._full.clear()
            self._tell_anew()
            self._writer.begin_at(window.index + 1)

    def keep(self) -> None:
        """Something was found: what is written just now stays."""
        if self._writer is not None:
            self._writer.keep()

    def close(self) -> None:
        """End the recording. Raises OutputError."""
        if self._writer is not None:
            self._writer.close()
