"""The job's store: where the processes of a torch.distributed job find each other, over a connection of our own.

Every job has a key-value store that all of its ranks reach, whatever its backend. A connection of our own to it has a
lock of its own, so nothing that we wait for holds up the program. We only ever look, and look again: the waiting that
torch offers writes on stderr when its time is up.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from torch.distributed import FileStore, PrefixStore, TCPStore, get_world_size
from torch.distributed.distributed_c10d import _get_default_store

PREFIX = "traincheck"
PAUSE = 0.1
"""Seconds between two looks for a key."""


class JobStore:
    """Keys and values that all ranks of a job see. Every call may raise what torch raises when the store is gone."""

    def __init__(self, store: Any, host: str) -> None:
        self._store = store
        self.host = host
        """The host of the first rank, as the job knows it."""

    def put(self, key: str, value: bytes) -> None:
        """Set a key."""
        self._store.set(key, value)

    def get(self, keys: Sequence[str], seconds: float, is_cancelled: Callable[[], bool]) -> list[bytes] | None:
        """The values of `keys` once all are set; None where that takes too long, or `given_up` says so meanwhile."""
        deadline = time.monotonic() + seconds
        while not self._store.check(list(keys)):
            if time.monotonic() > deadline or is_cancelled():
                return None
            time.sleep(PAUSE)
        return [bytes(self._store.get(key)) for key in keys]


def connect(job: str, seconds: float) -> JobStore:
    """A new connection to the store of the job that torch.distributed is initialised for, under a prefix of ours.

    Raises LookupError where the store is of a kind that cannot be reached a second time, or what torch raises.
    """
    # Not kept: the program may end the job and begin another one at the same address.
    base: Any = _get_default_store()
    while isinstance(base, PrefixStore):
        base = base.underlying_store
    if isinstance(base, TCPStore):
        limit = timedelta(seconds=seconds)
        connection: Any = TCPStore(base.host, base.port, None, False, limit, wait_for_workers=False)
        host = base.host
    elif isinstance(base, FileStore):
        connection, host = FileStore(base.path, get_world_size()), "localhost"
    else:
        raise LookupError(f"a {type(base).__name__} cannot be reached over a second connection")
    return JobStore(PrefixStore(f"{PREFIX}/{job}", connection), host)
