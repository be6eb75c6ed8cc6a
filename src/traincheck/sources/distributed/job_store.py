"""Connects to the key-value store of a torch.distributed job, where its processes find each other.

Every job has a store that all its ranks reach, whatever its backend. TrainCheck opens its own connection with its own
lock, so waiting for a key never blocks the program. It polls for keys: the wait function of torch writes to stderr when
it times out.
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
"""Seconds between two polls for a key."""


class JobStore:
    """Keys and values shared by all ranks of a job. Every method may raise the errors of torch when the store is
    gone."""

    def __init__(self, store: Any, host: str) -> None:
        self._store = store
        self.host = host
        """The host of the first rank, as known to the job."""

    def put(self, key: str, value: bytes) -> None:
        """Set a key."""
        self._store.set(key, value)

    def has(self, key: str) -> bool:
        """Whether a key is set."""
        return bool(self._store.check([key]))

    def value(self, key: str) -> bytes:
        """The value of a key that is set."""
        return bytes(self._store.get(key))

    def claim(self, key: str, value: bytes) -> None:
        """Set a key unless it is set. If several ranks do so at a time, one of them succeeds."""
        self._store.compare_set(key, "", value.decode())

    def get(self, keys: Sequence[str], seconds: float, is_cancelled: Callable[[], bool]) -> list[bytes] | None:
        """Return the values of `keys` once all are set; None after a timeout, or once `is_cancelled` returns True."""
        deadline = time.monotonic() + seconds
        while not self._store.check(list(keys)):
            if time.monotonic() > deadline or is_cancelled():
                return None
            time.sleep(PAUSE)
        return [self.value(key) for key in keys]


def connect(job: str, seconds: float) -> JobStore:
    """Open a connection to the store of the current torch.distributed job, with keys under a TrainCheck prefix.

    Raises LookupError where the store does not support a second connection, or the errors of torch.
    """
    # Never cached: the program may end the job and start another at the same address.
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
