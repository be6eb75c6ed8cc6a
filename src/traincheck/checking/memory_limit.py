"""Outgrown: a relation that remembers ever more is given a gap, as if windows were missing, so that it forgets.

Note [Names without end]
What relations remember is kept by the names of variables, modules and optimizers. A program that makes new ones all the
time (a search over models, a restart in each fold) has no end of names. A relation cannot know that a thing is gone;
but behind a gap each of them forgets what was and begins anew, without an alarm. So where one has outgrown by far what
it needed at first, it is shown the next window with a gap before it. That depends on the windows alone, so a check of
the recording does the same as the one that was live.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace

from traincheck.vocab.events import Window

EVERY = 500
"""Windows between two looks at how much is remembered. What takes long to count is looked at less often."""

LEAST = 10_000
"""Entries that a relation may remember in any case: some 3 MB."""

TIMES = 4
"""How many times as much as at the first look it may be: evaluations and checkpoints may come later than that."""

PER_WINDOW = 50
"""Entries to be counted for each window that passes: some ten microseconds."""

_CONTAINERS = (dict, list, set, frozenset, deque)


class Memory:
    """What a relation remembers. Hand each window to `shown`, and what comes back to the relation."""

    def __init__(self, relation: object) -> None:
        self._relation = relation
        self._gaps = 0
        self._windows = 0
        self._next_look = EVERY
        self._most = 0  # not known yet

    def shown(self, windows: Sequence[Window]) -> Sequence[Window]:
        """The windows (of several ranks, or just one) with the gaps that there were so far."""
        self._windows += 1
        if self._windows >= self._next_look:
            self._look()
        return [replace(each, index=each.index + self._gaps) for each in windows] if self._gaps else windows

    def _look(self) -> None:
        found = entries(self._relation)
        self._next_look = self._windows + max(EVERY, found // PER_WINDOW)
        if not self._most:
            self._most = max(LEAST, TIMES * found)
        elif found > self._most:
            self._gaps += 1
            self._most = 0


def entries(thing: object) -> int:
    """How many entries there are in what an object holds, and in what that holds."""
    found, seen, todo = 0, {id(thing)}, [thing]
    while todo:
        one = todo.pop()
        if isinstance(one, _CONTAINERS):
            found += len(one)
            inside = one.values() if isinstance(one, dict) else one
        else:
            inside = vars(one).values() if hasattr(one, "__dict__") else _slots(one)
        for each in inside:
            if _holds(each) and id(each) not in seen:
                seen.add(id(each))
                todo.append(each)
    return found


def _holds(thing: object) -> bool:
    """Whether entries may pile up in it: in a container, or an object of ours that is no plain data."""
    kind = type(thing)
    return issubclass(kind, _CONTAINERS) or (
        not issubclass(kind, tuple | type) and not kind.__module__.startswith(("builtins", "traincheck.vocab"))
    )


def _slots(thing: object) -> list[object]:
    return [getattr(thing, name, None) for cls in type(thing).__mro__ for name in getattr(cls, "__slots__", ())]
