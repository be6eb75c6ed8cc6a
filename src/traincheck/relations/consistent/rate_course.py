"""The course of the learning rate: whether it rises, falls or stays from update to update, and whether it gets to zero.

The rate itself is tuned, and another run may be longer. What happens to the rate is not: a schedule that nobody steps
stays, and one that was planned for fewer steps rises again, or ends at zero while the training goes on.
"""

from __future__ import annotations

from collections.abc import Iterator

from traincheck.relations.parts import UPDATE, calls_of, named, number
from traincheck.vocab.demand import Demand
from traincheck.vocab.events import LIVE, Call, Window
from traincheck.vocab.occasion import Occasion, Property, Subject
from traincheck.vocab.properties import TAKES_COURSE

LR = "hyperparameter.lr"
GRAIN = "course"

_LESS = 1 - 1e-9
"""Rounding of a rate that is computed anew is no change."""


class RateCourse:
    """Follows the learning rate of each parameter group. A group is known by its number, whatever the optimizer."""

    def __init__(self) -> None:
        self._rates: dict[str, dict[str, float]] = {}

    def occasions(self, window: Window) -> Iterator[Occasion]:
        for call in calls_of(window, UPDATE):
            yield from self._of_update(call, window)

    def _of_update(self, call: Call, window: Window) -> Iterator[Occasion]:
        known = self._rates.setdefault(call.receiver, {})
        before = dict(known)
        for reading in window.readings_of.get(call.seq, ()):
            rate = number(reading.value)
            if named(reading) == LR and reading.role == LIVE and rate is not None:
                known[reading.variable] = rate
        for group, rate in known.items():
            if group in before:
                subject = Subject(LR, f"{GRAIN} of {group.rpartition('.')[2]}")
                held = frozenset((Property(TAKES_COURSE, LR, _course(before[group], rate)),))
                yield Occasion(subject, (), held, frozenset(), call.seq, (group,))

    def forget(self) -> None:
        """The rates before a gap are old."""
        self._rates.clear()

    @staticmethod
    def speaks_of(subject: Subject) -> bool:
        return subject.grain.startswith(GRAIN)

    @staticmethod
    def needs(subject: Subject, prop: Property) -> Demand:
        return Demand.of_calls(UPDATE) | Demand.of_readings(LR)

    @staticmethod
    def is_optional_practice(prop: Property) -> bool:
        return False

    @staticmethod
    def describe(subject: Subject, prop: Property) -> str:
        return "the learning rate rises, falls or stays as in good runs"


def _course(before: float, after: float) -> str:
    if not after:
        return "the rate is zero"
    if min(before, after) >= _LESS * max(before, after):
        return "the rate stays"
    return "the rate rises" if after > before else "the rate falls"
