"""Write and read the operations of a process: one file next to its events, with one record for each step.

A record is its length (four bytes, little endian) and a `StepOperations` in MessagePack. A killed process may leave the
last record incomplete; readers stop there. The first record is the number of the format.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterator
from pathlib import Path

import msgspec

from traincheck.errors import OutputError, TraceTooNew, TraceUnreadable
from traincheck.trace.format import OPERATIONS
from traincheck.vocab.events import Window
from traincheck.vocab.operations import StepOperations

FORMAT = 1
_LENGTH = struct.Struct("<I")


class OperationWriter:
    """Appends the operations of steps to the file of a process.

    The training thread hands them over with `add`. They are written as a stage of the pipeline, before the next window.
    """

    def __init__(self, folder: Path, process: int) -> None:
        self._folder, self._process = folder, process
        self._waiting: deque[StepOperations] = deque()
        self._path: Path | None = None

    def add(self, operations: StepOperations) -> None:
        """Write these operations soon."""
        self._waiting.append(operations)

    def feed(self, window: Window) -> None:
        """Write what was added before the window. Raises OutputError."""
        while self._waiting:
            self._write(self._waiting.popleft(), window.rank)

    def _write(self, operations: StepOperations, rank: int) -> None:
        records = [operations] if self._path else [FORMAT, operations]
        self._path = self._path or self._folder / f"{OPERATIONS}-{rank}-{self._process}.msgpack"
        packed = b"".join(_LENGTH.pack(len(record)) + record for record in map(msgspec.msgpack.encode, records))
        try:
            with self._path.open("ab") as file:
                file.write(packed)
        except OSError as error:
            raise OutputError(self._path, error.strerror or str(error)) from error


def read_operations(path: Path) -> Iterator[StepOperations]:
    """The sketched steps of a file, in their order. Raises TraceUnreadable and TraceTooNew."""
    try:
        contents = path.read_bytes()
    except OSError as error:
        raise TraceUnreadable(path, error.strerror or str(error)) from error
    try:
        records = _records(contents)
        version = msgspec.msgpack.decode(next(records, b"\x00"), type=int)
        if version > FORMAT:
            raise TraceTooNew(path, version, FORMAT)
        for record in records:
            yield msgspec.msgpack.decode(record, type=StepOperations)
    except msgspec.DecodeError as error:
        raise TraceUnreadable(path, f"it was damaged ({error})") from None


def _records(contents: bytes) -> Iterator[bytes]:
    begin = 0
    while begin + _LENGTH.size <= len(contents):
        end = begin + _LENGTH.size + _LENGTH.unpack_from(contents, begin)[0]
        if end > len(contents):
            return
        yield contents[begin + _LENGTH.size : end]
        begin = end
