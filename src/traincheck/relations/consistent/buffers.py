"""Buffers: what is in a buffer when a model is used for training is the same on all ranks.

Some programs send the running statistics of the first rank to all others in each step, some let each rank have its own,
and what is a copy and what a part is no matter of names. So of a pair of ranks those buffers are compared that were the
same on both after they had changed: such are kept together by somebody. (That they differ without it says nothing.)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from traincheck.relations.base import context_of, fate
from traincheck.relations.consistent.rank_pairs import Kept, classes_of, pairs_of
from traincheck.relations.parts import named, readings
from traincheck.vocab.demand import Demand
from traincheck.vocab.events import TRAIN, Reading, Window
from traincheck.vocab.facts import FactValue, facts
from traincheck.vocab.occasion import RANKS, Occasion, Property, Subject
from traincheck.vocab.ranks import apart, who_differs

USED = "buffer.used_data"
SUBJECT = Subject(USED, RANKS)
_CONTEXT = context_of(facts(same_name=True, same_rank=False), TRAIN)
SAME = Property("same on ranks", USED)


class Buffers:
    """Compares training windows of several ranks; remembers what buffers began with, and which were kept alike."""

    def __init__(self) -> None:
        self._first: dict[str, FactValue] = {}
        self._kept = Kept()

    def across(self, windows: Sequence[Window]) -> Iterator[Occasion]:
        """For each pair of ranks, one occasion for the buffers of each fate; `seq` is of the first window."""
        if windows[0].stage != TRAIN:
            return
        told = {window.rank: _told(window) for window in windows if window.values_of == window.rank}
        for of_rank in told.values():
            for name, reading in of_rank.items():
                self._first.setdefault(name, reading.value)
        alike = classes_of(windows)
        for one, other in sorted(pairs_of(list(alike)) | self._kept.pairs(alike)):
            kept = self._kept.of(one, other, alike)
            fates: dict[bool, list[str]] = {}
            for name, mine in told[one].items():
                theirs = told.get(other, told[one]).get(name)
                if theirs is not None:
                    so = mine.value == theirs.value
                    if kept.has(name):
                        fates.setdefault(so, []).append(name)
                    if so and mine.value != self._first[name]:
                        kept.add(name)
            for so, names in fates.items():
                found = Occasion(SUBJECT, _CONTEXT, *fate(SAME, so), told[one][names[0]].call, tuple(names))
                yield found if so else _unlike(found, windows, told)

    @staticmethod
    def speaks_of(subject: Subject) -> bool:
        return subject == SUBJECT

    @staticmethod
    def needs(subject: Subject, prop: Property) -> Demand:
        return Demand(frozenset(), readings(USED, "parameter.used_data"))

    @staticmethod
    def is_habit(prop: Property) -> bool:
        return False

    @staticmethod
    def describe(subject: Subject, prop: Property) -> str:
        return "a buffer that ranks have kept the same is so on every rank when the model is used for training"

    def occasions(self, window: Window) -> Iterator[Occasion]:
        """None: one rank alone says nothing of others."""
        return iter(())

    def forget(self) -> None:
        """See `across`, which looks at several ranks."""


def _unlike(found: Occasion, windows: Sequence[Window], told: Mapping[int, Mapping[str, Reading]]) -> Occasion:
    """The occasion with who differs in the first of its buffers."""
    readings = [(window.rank, told[window.values_of].get(found.variables[0])) for window in windows]
    seen = [(rank, reading.value) for rank, reading in readings if reading is not None]
    return found._replace(note=f"{who_differs(seen)} in what the buffer holds when it is used", apart=apart(seen))


def values(window: Window) -> Iterator[tuple[str, str, object]]:
    """What of the buffers is compared, see `ComparesRanks.values`."""
    for name, reading in _told(window).items():
        yield USED, name, reading.value


def _told(window: Window) -> dict[str, Reading]:
    """The first reading of each buffer."""
    found: dict[str, Reading] = {}
    for reading in window.readings:
        if named(reading) == USED:
            found.setdefault(reading.variable, reading)
    return found
