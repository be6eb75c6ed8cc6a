"""Check that buffers which ranks keep the same are the same on all ranks when a model is used for training.

Some programs broadcast the running statistics of the first rank in each step, and some let each rank have its own.
Names do not show which it is. So two ranks are compared on those buffers that were the same on both after they had
changed: somebody keeps these the same. (Buffers that differ without such a history say nothing.)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from traincheck.relations.base import context_of, outcome_of
from traincheck.relations.consistent.ranks.rank_pairs import AgreedVariables, classes_of, pairs_of
from traincheck.relations.parts import StatelessPart, named
from traincheck.vocab.demand import Demand
from traincheck.vocab.events import TRAIN, Reading, Window
from traincheck.vocab.facts import FactValue, facts
from traincheck.vocab.occasion import RANKS, Occasion, Property, Subject
from traincheck.vocab.properties import SAME_ON_RANKS
from traincheck.vocab.ranks import differing_ranks_text, ranks_that_differ

USED = "buffer.used_data"
SUBJECT = Subject(USED, RANKS)
_CONTEXT = context_of(facts(same_name=True, same_rank=False), TRAIN)
SAME = Property(SAME_ON_RANKS, USED)


class Buffers(StatelessPart):
    """Compares training windows of several ranks. Keeps the first value of each buffer, and which buffers agreed."""

    def __init__(self) -> None:
        self._first: dict[str, FactValue] = {}
        self._agreed = AgreedVariables()

    def across(self, windows: Sequence[Window]) -> Iterator[Occasion]:
        """Yield one occasion for each pair of ranks and each outcome; `seq` refers to the first window."""
        if windows[0].stage != TRAIN:
            return
        readings_by_rank = {
            window.rank: _first_readings(window) for window in windows if window.values_of == window.rank
        }
        for readings in readings_by_rank.values():
            for name, reading in readings.items():
                self._first.setdefault(name, reading.value)
        classes = classes_of(windows)
        for first, second in sorted(pairs_of(list(classes)) | self._agreed.pairs(classes)):
            agreed = self._agreed.of(first, second, classes)
            outcomes: dict[bool, list[str]] = {}
            for name, own in readings_by_rank[first].items():
                theirs = readings_by_rank.get(second, readings_by_rank[first]).get(name)
                if theirs is not None:
                    holds = own.value == theirs.value
                    if agreed.has(name):
                        outcomes.setdefault(holds, []).append(name)
                    if holds and own.value != self._first[name]:
                        agreed.add(name)
            for holds, names in outcomes.items():
                occasion = Occasion(
                    SUBJECT, _CONTEXT, *outcome_of(SAME, holds), readings_by_rank[first][names[0]].call, tuple(names)
                )
                yield occasion if holds else _with_difference(occasion, windows, readings_by_rank)

    @staticmethod
    def speaks_of(subject: Subject) -> bool:
        return subject == SUBJECT

    @staticmethod
    def needs(subject: Subject, prop: Property) -> Demand:
        return Demand.of_readings(USED, "parameter.used_data")

    @staticmethod
    def describe(subject: Subject, prop: Property) -> str:
        return "a buffer that ranks have kept the same is so on every rank when the model is used for training"

    def occasions(self, window: Window) -> Iterator[Occasion]:
        """Nothing: a single rank cannot be judged."""
        return iter(())


def _with_difference(
    occasion: Occasion, windows: Sequence[Window], readings_by_rank: Mapping[int, Mapping[str, Reading]]
) -> Occasion:
    """The occasion with the ranks that differ in the first of its buffers."""
    readings = [(window.rank, readings_by_rank[window.values_of].get(occasion.variables[0])) for window in windows]
    values = [(rank, reading.value) for rank, reading in readings if reading is not None]
    return occasion._replace(
        note=f"{differing_ranks_text(values)} in what the buffer holds when it is used",
        differing=ranks_that_differ(values),
    )


def values(window: Window) -> Iterator[tuple[str, str, object]]:
    """Yield the compared values of buffers, see `ComparesRanks.values`."""
    for name, reading in _first_readings(window).items():
        yield USED, name, reading.value


def _first_readings(window: Window) -> dict[str, Reading]:
    """The first reading of each buffer."""
    readings: dict[str, Reading] = {}
    for reading in window.readings:
        if named(reading) == USED:
            readings.setdefault(reading.variable, reading)
    return readings
