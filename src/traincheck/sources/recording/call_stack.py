"""Open calls: what has begun in a thread and not yet ended, and what else the thread is about."""

from __future__ import annotations

import itertools
import threading
from typing import Any

from traincheck.vocab.events import Call, TensorSummary
from traincheck.vocab.facts import Facts


class OpenCall:
    """A call that has begun and not yet ended."""

    __slots__ = ("args", "context", "kind", "levels", "note", "parent", "receiver", "result", "seq", "site", "tensors")

    def __init__(
        self,
        seq: int,
        parent: int,
        kind: str,
        levels: tuple[str, ...],
        receiver: str,
        site: str,
        context: Facts,
        args: Facts,
    ) -> None:
        self.seq = seq
        self.parent = parent
        self.kind = kind
        self.levels = levels
        self.receiver = receiver
        self.site = site
        self.context = context
        self.args = args
        self.note: Any = None
        self.result: Facts = ()  # of one to which something is added when it has ended, see device_transfers.py
        self.tensors: tuple[TensorSummary, ...] = ()  # of its arguments first, those of its result are added at its end


class OpenCalls(threading.local):
    """The open calls of a thread, innermost last."""

    def __init__(self) -> None:
        self.stack: list[OpenCall] = []


class Doing(threading.local):
    """What a thread is about, and its number in order of appearance."""

    numbers = itertools.count()

    def __init__(self) -> None:
        self.asking = False
        self.fetching: str | None = None
        self.number = next(self.numbers)


def renamed(call: Call, names: dict[str, str]) -> Call:
    """`call` with other names for the memory of its tensors."""
    if not any(tensor.storage in names for tensor in call.tensors):
        return call
    tensors = (tensor._replace(storage=names.get(tensor.storage, tensor.storage)) for tensor in call.tensors)
    return call._replace(tensors=tuple(tensors))
