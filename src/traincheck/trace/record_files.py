"""Write and read records that a process appends to a file of its own, next to its events.

A record is its length (four bytes, little endian) and a value in MessagePack, compressed by zlib. A killed process may
leave the last record incomplete; readers stop there. The first record is the number of the format, uncompressed.
"""

from __future__ import annotations

import struct
import zlib
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from traincheck.errors import OutputError, TraceTooNew, TraceUnreadable
from traincheck.trace.growing_files import PAUSE, GrowingFile
from traincheck.vocab.events import Window

Record = TypeVar("Record")
_LENGTH = struct.Struct("<I")
UNCOMPRESSED = 1
"""The format whose records were not compressed."""

_LEVEL = 1
"""Of compression: random projections do not get smaller, and names get so at any level."""


class RecordWriter(Generic[Record]):
    """Appends records to the file `prefix` of a process.

    The training thread hands them over with `add`. They are written as a stage of the pipeline, before the next window.
    """

    def __init__(self, folder: Path, process: int, prefix: str, version: int) -> None:
        self._folder, self._process, self._prefix, self._version = folder, process, prefix, version
        self._waiting: deque[Record] = deque()
        self._path: Path | None = None

    def add(self, record: Record) -> None:
        """Write this record soon."""
        self._waiting.append(record)

    def stored(self, record: Record) -> object:
        """What is written for a record."""
        return record

    def feed(self, window: Window) -> None:
        """Write what was added before the window. Raises OutputError."""
        self.write(window.rank)

    def write(self, rank: int) -> None:
        """Write what was added. Raises OutputError. Call it on one thread alone."""
        if not self._waiting:
            return
        packed = [] if self._path else [_with_length(msgspec.msgpack.encode(self._version))]
        self._path = self._path or self._folder / f"{self._prefix}-{rank}-{self._process}.msgpack"
        while self._waiting:
            contents = msgspec.msgpack.encode(self.stored(self._waiting.popleft()))
            packed.append(_with_length(zlib.compress(contents, _LEVEL)))
        try:
            with self._path.open("ab") as file:
                file.write(b"".join(packed))
        except OSError as error:
            raise OutputError(self._path, error.strerror or str(error)) from error


def _with_length(contents: bytes) -> bytes:
    return _LENGTH.pack(len(contents)) + contents


def read_records(
    path: Path, version: int, kind: type[Record], ended: Callable[[], bool] = lambda: True, pause: float = PAUSE
) -> Iterator[Record]:
    """The records of a file, in their order.

    If the file is still being written, the iterator waits for the next record until `ended` returns True. It reads each
    byte once, and holds one record. Raises TraceUnreadable and TraceTooNew.
    """
    try:
        with GrowingFile(path, ended, pause) as file:
            records = _records(file)
            own = msgspec.msgpack.decode(next(records, b"\x00"), type=int)
            if own > version:
                raise TraceTooNew(path, own, version)
            for record in records:
                contents = record if own == UNCOMPRESSED else zlib.decompress(record)
                yield msgspec.msgpack.decode(contents, type=kind)
    except OSError as error:
        raise TraceUnreadable(path, error.strerror or str(error)) from error
    except (msgspec.DecodeError, zlib.error) as error:
        raise TraceUnreadable(path, f"it was damaged ({error})") from None


def _records(file: GrowingFile) -> Iterator[bytes]:
    """The complete records of a file."""
    while len(head := file.read(_LENGTH.size)) == _LENGTH.size:
        length = _LENGTH.unpack(head)[0]
        record = file.read(length)
        if len(record) < length:
            return
        yield record
