"""Lines: what ranks say to the one that compares them, as messages over a socket."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time

import msgspec

from traincheck.vocab.events import Window

LARGEST = 1 << 30
"""Bytes of a message; more means that somebody else is talking."""


class Hello(msgspec.Struct, tag=True, frozen=True):
    """The first message of a rank: who it is, and the word that only ranks of the job know."""

    rank: int
    word: str


class Told(msgspec.Struct, tag=True, frozen=True):
    """A lean window (see checking/digests.py)."""

    window: Window


class Asked(msgspec.Struct, tag=True, frozen=True):
    """Asks a rank for one of its windows in full."""

    index: int


class InFull(msgspec.Struct, tag=True, frozen=True):
    """The answer; there is no window where it is kept no more. One that comes late is told by its index."""

    index: int
    window: Window | None


class Ended(msgspec.Struct, tag=True, frozen=True):
    """A rank has told all that it will tell; or the one that compares needs no more."""


class Stop(msgspec.Struct, tag=True, frozen=True):
    """Asks a rank to end its training before the next update."""

    title: str
    step: int


Message = Hello | Told | Asked | InFull | Ended | Stop

_LENGTH = struct.Struct("!I")
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Message)


class Line:
    """One end of a connection. `send` may be called from several threads, `receive` from one.

    Both raise OSError when the connection is gone.
    """

    def __init__(self, connection: socket.socket) -> None:
        connection.settimeout(None)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connection = connection
        self._lock = threading.Lock()
        self.sent = self.bytes_sent = 0

    def send(self, message: Message) -> None:
        """Send a message; waits while the other end does not read. Raises ValueError for what cannot be written."""
        try:
            body = _encoder.encode(message)
        except OverflowError as error:
            raise ValueError(str(error)) from error
        with self._lock:
            self._connection.sendall(_LENGTH.pack(len(body)) + body)
            self.sent += 1
            self.bytes_sent += _LENGTH.size + len(body)

    def receive(self, largest: int = LARGEST, seconds: float | None = None) -> Message:
        """The next message, of so many bytes at the most; waits for it, so many seconds where they are given."""
        deadline = None if seconds is None else time.monotonic() + seconds
        (length,) = _LENGTH.unpack(self._exactly(_LENGTH.size, deadline))
        if length > largest:
            raise OSError(f"a message of {length} bytes")
        try:
            message: Message = _decoder.decode(self._exactly(length, deadline))
            return message
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise OSError(f"no message of ours: {error}") from error

    def close(self) -> None:
        """End the connection; who waits at either end wakes."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()

    def _exactly(self, size: int, deadline: float | None) -> bytes:
        found = bytearray()
        while len(found) < size:
            if deadline is not None:
                self._connection.settimeout(max(deadline - time.monotonic(), 0.001))
            more = self._connection.recv(min(size - len(found), 1 << 20))
            if not more:
                raise ConnectionResetError("the other end has closed the connection")
            found += more
        if deadline is not None:
            self._connection.settimeout(None)
        return bytes(found)
