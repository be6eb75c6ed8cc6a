"""Write the windows of one process to its event file."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any

import pyarrow as pa

from traincheck.errors import OutputError
from traincheck.trace.columns import Columns
from traincheck.trace.format import EVENTS
from traincheck.trace.schema import Steps, schema
from traincheck.trace.segments import segment_of
from traincheck.vocab.events import Window

_kept: list[Any] = []
"""Files whose descriptors the program has taken over: they stay open until the process ends."""


class TraceWriter:
    """Writes `<prefix>-<rank>-<process>.arrows` in `folder`, one window after the other, from one thread.

    From the second `segment` on, the file name contains the segment's number. The file then also lists the training
    steps that were `removed` from the recording (see trace/rotation.py).

    The file is created with the first window. When `write` returns, the operating system has the window: a killed
    process loses at most the window that it was writing. Windows that are read back have the writer's `rank` and
    `process`.

    `write` and `close` raise OutputError if the file cannot be written or was deleted. Every later `write` then raises,
    too: nothing after an incomplete message could be read. In a forked child, `write` raises and `close` does nothing,
    because the file belongs to the parent.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        rank: int,
        process: int,
        prefix: str = EVENTS,
        segment: int = 1,
        removed: Iterable[Steps] = (),
    ) -> None:
        self.path = segment_of(Path(folder) / f"{prefix}-{rank}-{process}.arrows", segment)
        self.windows = 0
        self.bytes_written = 0
        self._schema = schema(rank, process, removed)
        self._columns = Columns()
        self._file: Any = None
        self._stream: Any = None
        self._refusal = ""
        self._pid = os.getpid()

    def write(self, window: Window) -> None:
        """Append `window` and pass it to the operating system."""
        if os.getpid() != self._pid:
            raise OutputError(self.path, "it belongs to the process that this one was forked from")
        if self._refusal:
            raise OutputError(self.path, self._refusal)
        batch = pa.RecordBatch.from_arrays(self._columns.of(window), schema=self._schema)
        self.begin()
        try:
            self._stream.write_batch(batch)
            self.path.stat()  # a file that was deleted takes writes all the same
            self.bytes_written = self._file.tell()
        except (OSError, pa.ArrowException) as error:
            raise self._failed(error) from error
        self.windows += 1

    def begin(self) -> None:
        """Create the file unless it exists. Raises OutputError."""
        try:
            if self._stream is None:
                self._open()
            elif not self._is_ours():
                _kept.append(self._file)
                self._file = None
                raise OSError(errno.EBADF, "its descriptor was closed by the program")
        except (OSError, pa.ArrowException) as error:
            raise self._failed(error) from error

    def close(self) -> None:
        """End the file; further calls do nothing."""
        if os.getpid() != self._pid or self._refusal:
            return
        self._refusal = "it was closed"
        if self._file is None:
            return
        if not self._is_ours():
            _kept.append(self._file)
            return
        try:
            self._stream.close()
            self.bytes_written = self._file.tell()
            self._file.close()
        except (OSError, pa.ArrowException) as error:
            raise self._failed(error) from error

    def __enter__(self) -> TraceWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.close()

    def _open(self) -> None:
        # Exclusively: the file of another process of this rank and number (in another container) is not overwritten.
        os.close(os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
        self._file = pa.OSFile(os.fspath(self.path), "wb")
        status = os.fstat(self._file.fileno())
        self._identity = (status.st_dev, status.st_ino)
        # Threads that compress would compete with the training for its cores. zstd needs half the space, and for
        # windows of a hundred events three times the time: mostly to begin, of each column anew.
        options = pa.ipc.IpcWriteOptions(compression="lz4", emit_dictionary_deltas=True, use_threads=False)
        self._stream = pa.ipc.new_stream(self._file, self._schema, options=options)

    def _is_ours(self) -> bool:
        """Whether the descriptor still refers to this file.

        A program that closes all descriptors (as daemons do) may have opened another file under the same number.
        """
        try:
            status = os.fstat(self._file.fileno())
        except OSError:
            return False
        return (status.st_dev, status.st_ino) == self._identity

    def _failed(self, error: Exception) -> OutputError:
        number = error.errno if isinstance(error, OSError) else None
        self._refusal = os.strerror(number) if number else str(error)
        if self._file is not None:
            self._abandon()
        return OutputError(self.path, self._refusal)

    def _abandon(self) -> None:
        """Close the file without an end mark; complete windows can be read."""
        with contextlib.suppress(OSError):  # told already: this follows a failed write
            self._file.close()
