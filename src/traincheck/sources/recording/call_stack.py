"""Keeps the calls that have begun in a thread and not yet ended, and the state of that thread."""

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
        self.result: Facts = ()  # filled in after the end of a call that device_transfers.py completes
        self.tensors: tuple[TensorSummary, ...] = ()  # of the arguments, then of the result


class CallStack(threading.local):
    """The open calls of a thread, innermost last."""

    def __init__(self) -> None:
        self.calls: list[OpenCall] = []


class ThreadState(threading.local):
    """The state of a thread that sources need: the query or fetch under way, and its number in order of appearance."""

    numbers = itertools.count()

    def __init__(self) -> None:
        self.queries_program = False
        self.fetch_site: str | None = None
        self.number = next(self.numbers)


def with_storage_names(call: Call, names: dict[str, str]) -> Call:
    """`call` with these names for the storages of its tensors."""
    if not any(tensor.storage in names for tensor in call.tensors):
        return call
    tensors = (tensor._replace(storage=names.get(tensor.storage, tensor.storage)) for tensor in call.tensors)
    return call._replace(tensors=tuple(tensors))
