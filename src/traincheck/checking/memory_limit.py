"""Bounds the memory of relations: one that stores too much gets a gap in its windows, so that it forgets.

Note [Names without end]
Relations store state by the names of variables, modules and optimizers. A program that creates new ones all the time (a
search over models, a restart in each fold) has no end of names, and a relation cannot know that an object is gone. But
after a gap each relation forgets its state and starts again, without an alarm. So a relation that has grown far beyond
its first size gets a gap before its next window. The gaps depend on the windows only, so a check of the recording
behaves like the live check.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace

from traincheck.vocab.events import Window

EVERY = 500
"""Windows between two counts of the stored entries. TrainCheck counts less often if counting takes long."""

LEAST = 10_000
"""Entries that a relation may always store: some 3 MB."""

TIMES = 4
"""The limit, as a multiple of the first count: evaluations and checkpoints may come later than that."""

PER_WINDOW = 50
"""Entries to count per window: some ten microseconds."""

_CONTAINERS = (dict, list, set, frozenset, deque)


class MemoryLimit:
    """The limit of one relation. Pass each window through `with_gaps` before you hand it to the relation."""

    def __init__(self, relation: object) -> None:
        self._relation = relation
        self._gaps = 0
        self._windows = 0
        self._next_count = EVERY
        self._limit = 0  # until the first count

    def with_gaps(self, windows: Sequence[Window]) -> Sequence[Window]:
        """The windows (of one or several ranks), moved by the gaps so far."""
        self._windows += 1
        if self._windows >= self._next_count:
            self._count()
        return [replace(window, index=window.index + self._gaps) for window in windows] if self._gaps else windows

    def _count(self) -> None:
        count = entries(self._relation)
        self._next_count = self._windows + max(EVERY, count // PER_WINDOW)
        if not self._limit:
            self._limit = max(LEAST, TIMES * count)
        elif count > self._limit:
            self._gaps += 1
            self._limit = 0


def entries(root: object) -> int:
    """The number of entries in all containers that an object holds, directly or through others."""
    count, visited, pending = 0, {id(root)}, [root]
    while pending:
        value = pending.pop()
        if isinstance(value, _CONTAINERS):
            count += len(value)
            children = value.values() if isinstance(value, dict) else value
        else:
            children = vars(value).values() if hasattr(value, "__dict__") else _slots(value)
        for child in children:
            if _may_grow(child) and id(child) not in visited:
                visited.add(id(child))
                pending.append(child)
    return count


def _may_grow(value: object) -> bool:
    """Whether entries may pile up in it: a container, or an object of ours that is no plain data."""
    kind = type(value)
    return issubclass(kind, _CONTAINERS) or (
        not issubclass(kind, tuple | type) and not kind.__module__.startswith(("builtins", "traincheck.vocab"))
    )


def _slots(value: object) -> list[object]:
    return [getattr(value, name, None) for cls in type(value).__mro__ for name in getattr(cls, "__slots__", ())]
