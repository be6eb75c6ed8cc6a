"""Rates: an optimizer uses the learning rate that its scheduler has set, and does not begin with one that is too high.

Note [The first steps]
A schedule may lower the rate at any time, by a factor of ten at the end of an epoch. In the first steps of an optimizer
it does not: a rate that falls by more than half there was not the one to begin with (a warm-up that was applied a step
too late). So the first `FIRST_STEPS` of each optimizer are looked at, whoever sets the rate.

Note [Who belongs to whom]
With several optimizers or several schedulers it is not known which belongs to which, so nothing is said of their
agreement. Behind dropped windows not all of them need have been seen: there it is only judged of those that agreed
before.

Known limitations: of several parameter groups the first is compared, since that is what a scheduler tells.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from traincheck.relations.base import context_of, outcome_of
from traincheck.relations.parts import SCHEDULE, UPDATE, calls_of, named, number, outermost
from traincheck.vocab.demand import Demand
from traincheck.vocab.events import LIVE, Call, Reading, Window
from traincheck.vocab.occasion import Occasion, Property, Subject
from traincheck.vocab.properties import AGREES_WITH, DOES_NOT_HALVE

LR, SCHEDULED_LR = "hyperparameter.lr", "scheduler.lr"
GRAIN, START = "schedule", "start"

FIRST_STEPS = 4
"""Long enough that a few programs teach the rule, short enough that hardly any schedule has its first drop in it."""
LEAST_SHARE = 0.5
"""A linear decay over as few as four steps keeps at least half of the rate from step to step."""
_FIRST_GROUP = ".param_groups[0]"


class LearningRates:
    """Follows the learning rate of the first group of each optimizer, and of the scheduler."""

    def __init__(self) -> None:
        self._from_start = True
        self._clear()
        self._steps: dict[str, int] = {}
        self._schedulers: set[str] = set()
        self._agreed: set[tuple[str, str]] = set()  # optimizers and schedulers

    def _clear(self) -> None:
        self._rates: dict[str, float] = {}
        self._announced: float | None = None

    def forget(self) -> None:
        """From now on the first step that is seen of an optimizer need not be its first."""
        self._from_start = False
        self._clear()

    def occasions(self, window: Window) -> Iterator[Occasion]:
        """One occasion at each update where there is something to compare the rate with."""
        for call in calls_of(window, UPDATE, SCHEDULE):
            live_readings = [reading for reading in window.readings_of.get(call.seq, ()) if reading.role == LIVE]
            if call.levels[-1] == UPDATE:
                yield from self._of_update(call, window, live_readings)
            elif outermost(call, window):
                self._schedulers.add(call.receiver)
                self._announced = next((number(r.value) for r in live_readings if named(r) == SCHEDULED_LR), None)

    def _of_update(self, call: Call, window: Window, live_readings: list[Reading]) -> Iterator[Occasion]:
        optimizer = call.receiver
        old_rate = self._rates.get(optimizer)
        for reading in live_readings:
            new_rate = number(reading.value)
            if named(reading) == LR and reading.variable.endswith(_FIRST_GROUP) and new_rate is not None:
                self._rates[optimizer] = new_rate
        steps = self._steps[optimizer] = self._steps.get(optimizer, 0) + 1
        rate_now = self._rates.get(optimizer)
        if rate_now is None:
            return
        group = (optimizer + _FIRST_GROUP,)
        if old_rate is not None and self._from_start and steps <= FIRST_STEPS:
            yield _occasion(
                START, Property(DOES_NOT_HALVE, LR), rate_now >= LEAST_SHARE * old_rate, call, window, group
            )
        if self._announced is not None and len(self._schedulers) == len(self._steps) == 1:
            agrees = math.isclose(rate_now, self._announced, rel_tol=1e-6, abs_tol=1e-12)
            (scheduler,) = self._schedulers
            pair = optimizer, scheduler
            if not (self._from_start or agrees or pair in self._agreed):
                return
            if agrees:
                self._agreed.add(pair)
            yield _occasion(GRAIN, Property(AGREES_WITH, SCHEDULED_LR), agrees, call, window, group)

    @staticmethod
    def speaks_of(subject: Subject) -> bool:
        return subject.api == LR and subject.grain in (GRAIN, START)

    @staticmethod
    def needs(subject: Subject, prop: Property) -> Demand:
        if subject.grain == START:
            return Demand.of_calls(UPDATE) | Demand.of_readings(LR)
        return Demand.of_calls(UPDATE, SCHEDULE) | Demand.of_readings(LR, SCHEDULED_LR)

    @staticmethod
    def is_optional_practice(prop: Property) -> bool:
        return False

    @staticmethod
    def describe(subject: Subject, prop: Property) -> str:
        if subject.grain == START:
            return (
                f"in the first {FIRST_STEPS} steps of an optimizer, its learning rate does not fall by more than half"
            )
        return "the learning rate that an optimizer uses is the one that its scheduler has set"


def _occasion(
    grain: str, prop: Property, holds: bool, call: Call, window: Window, variables: tuple[str, ...]
) -> Occasion:
    context = context_of((), window.stage)
    return Occasion(Subject(LR, grain), context, *outcome_of(prop, holds), call.seq, variables)
