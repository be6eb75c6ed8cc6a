"""The course of the learning rate: whether it rises, falls or stays from update to update, and where it ends.

The rate itself is tuned, and another run may be longer. What happens to the rate is not: a schedule that nobody steps
stays, and one that was planned for fewer steps rises again, or ends at zero while the training goes on.

Note [Where a schedule ends]
A schedule that was planned for more steps shows only at the end of a run, in two ways. In runs with the same number of
updates, the same share of the highest rate is left. In runs of about one length, the rate falls to about zero, or not:
it falls by an ever larger factor, and is at most a few steps from zero. That holds for schedules that are planned for
the length of the run (linear, cosine), and not for a decay by constant factors. The length that a program computes is
often off by a few updates, because batches and accumulations have ragged ends. A run that an exception ended, and one
of which some windows were not watched, has no end to compare.

Note [Changes that never come]
A schedule that ignores its warm-up only does what the rate did in good runs as well: it stays. So runs with the same
number of updates are also compared by what the rate did at some time: it rose, it fell, both, or neither.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from traincheck.relations.consistent.whole_runs import lengths
from traincheck.relations.parts import UPDATE, calls_of, named, number
from traincheck.relations.periodic.run_totals import STEPS
from traincheck.vocab.demand import Demand
from traincheck.vocab.events import LIVE, NO_CALL, Call, Window
from traincheck.vocab.occasion import Occasion, Property, Subject
from traincheck.vocab.properties import TAKES_COURSE

LR = "hyperparameter.lr"
GRAIN = "course"
END = "end of the course"
WHOLE = "whole course"

_LESS = 1 - 1e-9
"""Rounding of a rate that is computed anew is no change."""

_NEAR_ZERO = 1e-3
"""Share of the highest rate that some schedules keep as their minimum."""

_FEW = 3
"""Steps from zero that a rate may stop at."""


class RateCourse:
    """Follows the learning rate of each parameter group. A group is known by its number, whatever the optimizer."""

    def __init__(self) -> None:
        self._rates: dict[str, dict[str, float]] = {}
        self._highest: dict[str, float] = {}
        self._latest: dict[str, tuple[float, ...]] = {}  # the last three different rates of each group
        self._lowest: dict[str, tuple[float, ...]] = {}  # the same at its lowest rate since the highest
        self._changes: dict[str, frozenset[str]] = {}  # whether the rate of each group rose, and whether it fell
        self._updates: Counter[str] = Counter()
        self._complete = True

    def occasions(self, window: Window) -> Iterator[Occasion]:
        for call in calls_of(window, UPDATE):
            yield from self._of_update(call, window)
        for reading in window.readings:
            if named(reading) == STEPS and reading.role == LIVE and self._complete:
                yield from self._of_run(int(number(reading.value) or 0), window.rank)

    def _of_update(self, call: Call, window: Window) -> Iterator[Occasion]:
        known = self._rates.setdefault(call.receiver, {})
        before = dict(known)
        for reading in window.readings_of.get(call.seq, ()):
            rate = number(reading.value)
            if named(reading) == LR and reading.role == LIVE and rate is not None:
                known[reading.variable] = rate
        self._updates[call.receiver] += 1
        for group, rate in known.items():
            if rate != before.get(group):
                self._note(group, rate)
            if group in before:
                subject = Subject(LR, f"{GRAIN} of {_number_of(group)}")
                change = _change(before[group], rate)
                if change:
                    self._changes[group] = self._changes.get(group, frozenset()) | {change}
                held = frozenset((Property(TAKES_COURSE, LR, _course(before[group], rate)),))
                yield Occasion(subject, (), held, frozenset(), call.seq, (group,))

    def _note(self, group: str, rate: float) -> None:
        """Note a rate that differs from the last one."""
        self._latest[group] = (*self._latest.get(group, ()), rate)[-3:]
        lowest = self._lowest.get(group, ())
        if rate >= self._highest.get(group, 0.0):
            self._highest[group], self._lowest[group] = rate, ()
        elif not lowest or rate <= lowest[-1]:
            self._lowest[group] = self._latest[group]

    def _of_run(self, steps: int, rank: int) -> Iterator[Occasion]:
        """See Note [Where a schedule ends]."""
        for optimizer, rates in self._rates.items():
            for group, rate in rates.items():
                highest, grain = self._highest[group], f"{END} of {_number_of(group)}"
                share = f"{rate / highest if highest else 0:.2g} of its highest value"
                ends = {f"{grain} after {self._updates[optimizer]} updates": f"the rate ends at {share}"}
                falls = "falls" if _falls_to_zero(self._lowest[group], highest) else "does not fall"
                for length in lengths(steps, rank):
                    ends[f"{grain} in runs of {length}"] = f"the rate {falls} to about zero"
                changes = " and ".join(sorted(self._changes.get(group, ()))) or "never changes"
                ends[f"{WHOLE} of {_number_of(group)} over {self._updates[optimizer]} updates"] = f"the rate {changes}"
                for where, how in ends.items():
                    held = frozenset((Property(TAKES_COURSE, LR, how),))
                    yield Occasion(Subject(LR, where), (), held, frozenset(), NO_CALL, (group,))

    def forget(self) -> None:
        """The rates before a gap are old, and nobody knows the highest one."""
        self._rates.clear()
        self._changes.clear()
        self._complete = False

    @staticmethod
    def speaks_of(subject: Subject) -> bool:
        return subject.grain.startswith((GRAIN, END, WHOLE))

    @staticmethod
    def needs(subject: Subject, prop: Property) -> Demand:
        readings = (LR, STEPS) if subject.grain.startswith((END, WHOLE)) else (LR,)
        return Demand.of_calls(UPDATE) | Demand.of_readings(*readings)

    @staticmethod
    def is_optional_practice(prop: Property) -> bool:
        return False

    @staticmethod
    def describe(subject: Subject, prop: Property) -> str:
        if subject.grain.startswith(END):
            return "the learning rate ends as in good runs of this length"
        if subject.grain.startswith(WHOLE):
            return "the learning rate rises or falls at some time as in good runs of this length"
        return "the learning rate rises, falls or stays as in good runs"


def _number_of(group: str) -> str:
    """A parameter group without its optimizer."""
    return group.rpartition(".")[2]


def _falls_to_zero(rates: Sequence[float], highest: float) -> bool:
    """Whether a rate falls by an ever larger factor, and is at most a few steps from zero."""
    if len(rates) < 3:
        return False
    first, second, last = rates
    falls_faster = first > second > last and last * first < _LESS * second * second
    return falls_faster and last <= _FEW * (second - last) + _NEAR_ZERO * highest


def _course(before: float, after: float) -> str:
    if not after:
        return "the rate is zero"
    return f"the rate {_change(before, after) or 'stays'}"


def _change(before: float, after: float) -> str:
    """Whether a rate falls or rises; empty if it stays."""
    if min(before, after) >= _LESS * max(before, after):
        return ""
    return "rises" if after > before else "falls"
