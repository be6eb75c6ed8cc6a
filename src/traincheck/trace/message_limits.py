"""Check the size of each message in an event file before decoding it, so that a small file cannot fill the memory.

Note [Claimed sizes]
Arrow decompresses a column to the size that the file claims, and zeros compress to almost nothing. A few kilobytes of
an untrusted file could therefore expand to terabytes. TrainCheck reads the file ahead of Arrow, through a second
handle, and checks the rows and bytes that each message claims. The check takes a few microseconds per window, because
it decompresses nothing.
"""

from __future__ import annotations

import struct
from typing import Any

LARGEST = 1 << 29
"""Maximum decompressed size in bytes of a message, and of a dictionary with all its additions."""

MAX_ROWS = 1 << 22
"""Maximum number of rows of a window: about half a million events, with a few tensors for each call."""

ROWS_OF_A_BYTE, FEW_ROWS = 16, 4096
"""Maximum rows per byte of a message, beyond a few: each event has numbers of its own, which take more space."""

LARGEST_HEAD = 1 << 24
"""Maximum size in bytes of a message header; a window's header has 3 KB."""

_DICTIONARY, _RECORDS = 2, 3
_CONTINUES = -1


class Bounds:
    """Checks the messages of `file`, which must be at the beginning of an Arrow IPC stream."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self._dictionaries: dict[int, int] = {}

    def next_window(self) -> None:
        """Check all messages up to the end of the next window. Raises ValueError for excessive or invalid sizes."""
        while (head := self._head()) is not None:
            message = _Table.root(head)
            size = message.number(3, "<q")
            body = self._read(size) if 0 <= size <= LARGEST else None
            if body is None:
                raise ValueError(f"a message of {size:,} bytes")
            if len(body) < size:
                return  # torn: whoever reads it says so
            kind = message.number(1, "<B")
            if kind == _RECORDS:
                _check_records(message.table(2), body)
                return
            if kind == _DICTIONARY:
                self._check_dictionary(message.table(2), body)

    def _head(self) -> bytes | None:
        """Return the header of the next message, or None at the end."""
        begins = self._read(4)
        if len(begins) == 4 and struct.unpack("<i", begins)[0] == _CONTINUES:
            begins = self._read(4)
        if len(begins) < 4:
            return None
        (size,) = struct.unpack("<i", begins)
        if size == 0:
            return None
        if not 0 < size <= LARGEST_HEAD:
            raise ValueError(f"the head of a message of {size:,} bytes")
        head = self._read(size)
        return head if len(head) == size else None

    def _read(self, size: int) -> bytes:
        parts = []
        while size > 0 and (part := self._file.read(min(size, 1 << 24))):
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

    def _check_dictionary(self, dictionary: _Table, body: bytes) -> None:
        number = dictionary.number(0, "<q")
        claimed = _claimed(dictionary.table(1), body)
        if dictionary.number(2, "<B"):
            claimed += self._dictionaries.get(number, 0)
        self._dictionaries[number] = claimed
        if sum(self._dictionaries.values()) > LARGEST:
            raise ValueError("its texts would take too much memory")


def _check_records(records: _Table, body: bytes) -> None:
    rows = records.number(0, "<q")
    if not 0 <= rows <= min(MAX_ROWS, FEW_ROWS + ROWS_OF_A_BYTE * len(body)):
        raise ValueError(f"a window of {rows:,} rows in {len(body):,} bytes")
    if _claimed(records, body) > LARGEST:
        raise ValueError("a window would take too much memory")


def _claimed(records: _Table, body: bytes) -> int:
    """Return the decompressed size of the columns in bytes."""
    places = records.pairs(2)
    if not records.has(3):
        return sum(places[1::2])
    total = 0
    for offset, length in zip(places[::2], places[1::2], strict=True):
        if length:
            if not 0 <= offset <= len(body) - 8:
                raise ValueError("a column that lies elsewhere")
            (size,) = struct.unpack_from("<q", body, offset)
            total += length if size < 0 else size
    return total


class _Table:
    """A table in the FlatBuffers encoding of Arrow's messages. Invalid data raises ValueError."""

    def __init__(self, data: bytes, at: int) -> None:
        self._data = data
        self._at = at
        self._fields = at - self._int("<i", at)
        self._size = self._int("<H", self._fields)

    @classmethod
    def root(cls, data: bytes) -> _Table:
        """Return the root table of `data`."""
        return cls(data, _unpacked("<I", data, 0))

    def has(self, field: int) -> bool:
        """Whether the table has the field of this number."""
        return bool(self._position(field))

    def number(self, field: int, kind: str) -> int:
        """Return the number in a field; 0 if the field is missing."""
        position = self._position(field)
        return self._int(kind, position) if position else 0

    def table(self, field: int) -> _Table:
        """The table in a field."""
        position = self._position(field)
        if not position:
            raise ValueError("a message without content")
        return _Table(self._data, position + self._int("<I", position))

    def pairs(self, field: int) -> tuple[int, ...]:
        """A vector of pairs of numbers, as one list."""
        position = self._position(field)
        if not position:
            return ()
        start = position + self._int("<I", position)
        count = self._int("<I", start)
        if count > len(self._data) // 16:
            raise ValueError("a message with more columns than it has room for")
        try:
            return struct.unpack_from(f"<{2 * count}q", self._data, start + 4)
        except struct.error as error:
            raise ValueError(str(error)) from error

    def _position(self, field: int) -> int:
        slot = 4 + 2 * field
        offset = self._int("<H", self._fields + slot) if slot < self._size else 0
        return self._at + offset if offset else 0

    def _int(self, kind: str, at: int) -> int:
        return _unpacked(kind, self._data, at)


def _unpacked(kind: str, data: bytes, at: int) -> int:
    if at < 0:
        raise ValueError("a message that points before its beginning")
    try:
        (value,) = struct.unpack_from(kind, data, at)
    except struct.error as error:
        raise ValueError(str(error)) from error
    return int(value)
