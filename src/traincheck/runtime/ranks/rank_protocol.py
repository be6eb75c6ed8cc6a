"""The messages between ranks and the comparing rank, and their framing on a socket.

A connection decodes only these messages (never pickle) and rejects longer ones, as any process can connect to the port.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import struct
import threading
import time

import msgspec

from traincheck.checking.digests import Selection
from traincheck.vocab.events import Window

LARGEST = 1 << 30
"""The largest message in bytes; a longer one comes from another program."""


class Hello(msgspec.Struct, tag=True, frozen=True):
    """The first message of a rank: its number, and the secret word of the job."""

    rank: int
    word: str


class WindowDigest(msgspec.Struct, tag=True, frozen=True):
    """A lean window (see checking/digests.py)."""

    window: Window


class ValueDigestsRequest(msgspec.Struct, tag=True, frozen=True):
    """Requests the digests of all values in some sections of a window. The number identifies the answer."""

    number: int
    index: int
    sections: frozenset[str]


class WindowValueDigests(msgspec.Struct, tag=True, frozen=True):
    """The answer, without digests if the rank keeps the window no longer."""

    number: int
    digests: dict[str, list[int]] | None


class ValuesRequest(msgspec.Struct, tag=True, frozen=True):
    """Requests values of a window. The number identifies the answer."""

    number: int
    index: int
    selection: Selection


class WindowValues(msgspec.Struct, tag=True, frozen=True):
    """The answer, without values if the rank keeps the window no longer."""

    number: int
    window: Window | None


class Alive(msgspec.Struct, tag=True, frozen=True):
    """The comparing rank still compares."""


class Ended(msgspec.Struct, tag=True, frozen=True):
    """A rank has sent all its windows, or the comparing rank needs no more."""


class Stop(msgspec.Struct, tag=True, frozen=True):
    """Requests that a rank ends its training before the next update."""

    title: str
    step: int


Message = (
    Hello
    | WindowDigest
    | ValueDigestsRequest
    | WindowValueDigests
    | ValuesRequest
    | WindowValues
    | Alive
    | Ended
    | Stop
)

_LENGTH = struct.Struct("!I")
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Message)


class Connection:
    """One end of a connection between ranks. Several threads may call `send`, one thread `receive`.

    Both raise OSError when the connection is closed.
    """

    def __init__(self, connection: socket.socket) -> None:
        connection.settimeout(None)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connection = connection
        self._lock = threading.Lock()
        self.sent = self.bytes_sent = 0

    def send(self, message: Message) -> None:
        """Send a message; waits while the other end does not read. Raises ValueError if it cannot be encoded."""
        try:
            body = _encoder.encode(message)
        except OverflowError as error:
            raise ValueError(str(error)) from error
        with self._lock:
            self._connection.sendall(_LENGTH.pack(len(body)) + body)
            self.sent += 1
            self.bytes_sent += _LENGTH.size + len(body)

    def receive(self, largest: int = LARGEST, seconds: float | None = None) -> Message:
        """Wait for the next message, of at most `largest` bytes, for at most `seconds`."""
        deadline = None if seconds is None else time.monotonic() + seconds
        (length,) = _LENGTH.unpack(self._exactly(_LENGTH.size, deadline))
        if length > largest:
            raise OSError(f"a message of {length} bytes")
        try:
            message: Message = _decoder.decode(self._exactly(length, deadline))
            return message
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise OSError(f"not a message of TrainCheck: {error}") from error

    def await_message(self, seconds: float) -> None:
        """Wait for the start of a message; raises TimeoutError if there is none.

        (A timeout of the socket would also apply to `send` in another thread.)
        """
        with selectors.DefaultSelector() as ready:
            ready.register(self._connection, selectors.EVENT_READ)
            if not ready.select(seconds):
                raise TimeoutError(f"no message in {seconds:.0f} s")

    def abort(self) -> None:
        """End the connection; waiting calls at both ends return. The thread that receives closes it: its number may
        belong to another file of the program afterwards."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection, while no other thread receives."""
        self.abort()
        self._connection.close()

    def _exactly(self, size: int, deadline: float | None) -> bytes:
        data = bytearray()
        while len(data) < size:
            if deadline is not None:
                self._connection.settimeout(max(deadline - time.monotonic(), 0.001))
            more = self._connection.recv(min(size - len(data), 1 << 20))
            if not more:
                raise ConnectionResetError("the other end has closed the connection")
            data += more
        if deadline is not None:
            self._connection.settimeout(None)
        return bytes(data)
