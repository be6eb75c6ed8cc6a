"""Decides which rank compares the others: rank 0, and after its loss the next living rank in order.

Note [Taking over]
The rank that compares the others may die or hang. Then its connections break, or it sends nothing for `SILENCE`
seconds. Each rank that notices it tries to take over, in the order of ranks and with a pause of `TURN` seconds between
them, so that in most cases the next living rank is first. An atomic operation of the job's key-value store decides. So
all ranks agree, even if they notice the loss at different times. The new rank compares the ranks that connect to it
within `JOIN` seconds, from their next windows on. No message of the program is involved. A rank takes over at most
once, and a job has at most `MAX_TERMS` comparing ranks, because an error of TrainCheck would end all of them.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from traincheck.sources.distributed.job_store import JobStore

MAX_TERMS = 4
"""Ranks that compare the others, one after the other."""
TURN = 0.3
"""Seconds that a rank leaves the rank before it to take over."""
CLAIM = 15.0
"""Seconds in which a rank must take over."""
PAUSE = 0.1


class Term(NamedTuple):
    """A comparing rank: the how many-th it is, and its number."""

    number: int
    rank: int


FIRST = Term(0, 0)


class Address(NamedTuple):
    """Where the comparing rank listens, and the secret word that it expects."""

    host: str
    port: int
    word: str


class Succession:
    """The terms of a job, as its store has them. Methods raise the errors of torch when the store is gone."""

    def __init__(self, store: JobStore, rank: int, world_size: int, is_cancelled: Callable[[], bool]) -> None:
        self._store = store
        self._rank = rank
        self._world_size = world_size
        self._is_cancelled = is_cancelled

    def open(self, term: Term, address: bytes) -> None:
        """Publish where to reach this rank, which compares the others in this term."""
        self._store.put(f"address/{term.number}", address)

    def address(self, term: Term, seconds: float) -> bytes | None:
        """What the comparing rank has published, None if it publishes nothing in time."""
        values = self._store.get([f"address/{term.number}"], seconds, self._is_cancelled)
        return values[0] if values else None

    def next_term(self, lost: Term, may_compare: bool) -> Term | None:
        """Agree on the rank that follows a lost one, None if no rank takes over in time. This rank may be the one if
        `may_compare`."""
        if lost.number + 1 >= MAX_TERMS:
            return None
        key = f"rank/{lost.number + 1}"
        turn = time.monotonic() + TURN * ((self._rank - lost.rank - 1) % self._world_size)
        deadline = time.monotonic() + CLAIM
        while not self._store.has(key):
            if self._is_cancelled() or time.monotonic() > deadline:
                return None
            if may_compare and self._rank != lost.rank and time.monotonic() >= turn:
                self._store.claim(key, str(self._rank).encode())
            else:
                time.sleep(PAUSE)
        return Term(lost.number + 1, int(self._store.value(key)))

    def lost_rank(self, term: Term) -> int:
        """The rank that compared the others before this term."""
        return int(self._store.value(f"rank/{term.number - 1}")) if term.number > 1 else FIRST.rank

    def is_replaced(self, term: Term) -> bool:
        """Whether another rank has taken over from this term."""
        return self._store.has(f"rank/{term.number + 1}")

    def rank_after(self, term: Term) -> int:
        """The rank that has taken over from this term."""
        return int(self._store.value(f"rank/{term.number + 1}"))

    def report_progress(self, term: Term, step: int) -> None:
        """Publish the last step that was compared."""
        self._store.put(f"compared/{term.number}", str(step).encode())

    def progress_before(self, term: Term) -> int:
        """The last step that was certainly compared before this term."""
        keys = (f"compared/{number}" for number in range(term.number))
        return max((int(self._store.value(key)) for key in keys if self._store.has(key)), default=0)


def encoded(address: Address) -> bytes:
    """An address as the store holds it."""
    return f"{address.host} {address.port} {address.word}".encode()


def decoded(text: bytes) -> Address:
    """The inverse of `encoded`."""
    host, port, word = text.decode().split(" ")
    return Address(host, int(port), word)


def own_host(store: JobStore) -> str:
    """The address by which other ranks reach this rank: the one with which it reaches the job's store."""
    with suppress(OSError):
        family, kind, _, _, address = socket.getaddrinfo(store.host, 1, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(address)  # sends nothing
            host = str(probe.getsockname()[0])
            if not host.startswith("127.") and host != "::1":
                return host
    return store.host  # the store is on this host


def listen(host: str, ranks: int) -> socket.socket:
    """Open a port on the address of this host by which the other ranks reach it."""
    with suppress(OSError):  # the name may belong to another machine
        for family, _, _, _, address in socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM):
            with suppress(OSError):
                return socket.create_server((str(address[0]), 0), family=family, backlog=ranks)
    return socket.create_server(("", 0), backlog=ranks)
