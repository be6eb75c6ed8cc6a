"""Buffers: what is in a buffer when a model is used for training is the same on all ranks.

Some programs send the running statistics of the first rank to all others in each step, some let each rank have its own,
and what is a copy and what a part is no matter of names. So what is told of a pair is whether both ranks had the same
after the buffer had changed: such buffers are kept together by somebody.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from traincheck.relations.base import context_of, fate
from traincheck.relations.pairs import Pairs
from traincheck.relations.parts import RANKS, named, readings, who_differs
from traincheck.vocab.demand import Demand
from traincheck.vocab.events import TRAIN, Reading, Window
from traincheck.vocab.facts import FactValue, facts
from traincheck.vocab.occasion import Occasion, Property, Subject

USED = "buffer.used_data"
SUBJECT = Subject(USED, RANKS)
SAME = Property("same on ranks", USED)


class Buffers:
    """Compares the training windows of several ranks; remembers what buffers began with, and which were kept alike."""

    def __init__(self) -> None:
        self._pairs = Pairs()
        self._first: dict[tuple[int, str], FactValue] = {}
        self._kept: set[tuple[int, int, str]] = set()

    def across(self, windows: Sequence[Window]) -> Iterator[Occasion]:
        """For each pair of ranks, one occasion for the buffers of each fate; `seq` is of the first window."""
        if windows[0].stage != TRAIN:
            return
        told = [_told(window) for window in windows]
        for window, of_rank in zip(windows, told, strict=True):
            for name, reading in of_rank.items():
                self._first.setdefault((window.rank, name), reading.value)
        for one, other in self._pairs.of(windows):
            ranks = windows[one].rank, windows[other].rank
            fates: dict[tuple[bool, bool], list[str]] = {}
            for name, mine in told[one].items():
                theirs = told[other].get(name)
                if theirs is not None:
                    so = mine.value == theirs.value
                    fates.setdefault(((*ranks, name) in self._kept, so), []).append(name)
                    if so and mine.value != self._first[ranks[0], name]:
                        self._kept.add((*ranks, name))
            for (kept, so), names in fates.items():
                context = context_of(facts(same_name=True, same_rank=False, kept_same=kept), TRAIN)
                seen = [(w.rank, r[names[0]].value) for w, r in zip(windows, told, strict=True) if names[0] in r]
                note = "" if so else f"{who_differs(seen)} in what the buffer holds when it is used"
                yield Occasion(SUBJECT, context, *fate(SAME, so), told[one][names[0]].call, tuple(names), note=note)

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
        return "a buffer holds the same on every rank when the model is used for training"

    def occasions(self, window: Window) -> Iterator[Occasion]:
        """None: one rank alone says nothing of others."""
        return iter(())

    def forget(self) -> None:
        """See `across`, which looks at several ranks."""


def _told(window: Window) -> dict[str, Reading]:
    """The first reading of each buffer."""
    found: dict[str, Reading] = {}
    for reading in window.readings:
        if named(reading) == USED:
            found.setdefault(reading.variable, reading)
    return found
