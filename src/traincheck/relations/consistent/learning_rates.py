"""Check that an optimizer uses the learning rate of its scheduler, and does not start with one that is too high.

Note [The first steps]
A schedule may lower the rate at any time, by a factor of ten at the end of an epoch. It does not do so in the first
steps of an optimizer. A rate that falls by more than half there was not the intended first one (a warm-up that was
applied a step too late). So the first `FIRST_STEPS` steps of each optimizer are judged, whoever sets the rate.

Note [Several schedulers]
With several optimizers or several schedulers, nothing shows which of them belong together, so their agreement is not
judged. After a gap, or in the first step, some of them may not have been seen yet: then only pairs that agree, or
agreed before, count.

Known limitations: of several parameter groups, only the first is compared, because a scheduler reports that one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from traincheck.relations.base import context_of, outcome_of
from traincheck.relations.parts import SCHEDULE, UPDATE, Part, calls_of, named, number, outermost
from traincheck.vocab.demand import Demand
from traincheck.vocab.events import LIVE, Call, Reading, Window
from traincheck.vocab.occasion import Occasion, Property, Subject
from traincheck.vocab.properties import AGREES_WITH, DOES_NOT_HALVE

LR, SCHEDULED_LR = "hyperparameter.lr", "scheduler.lr"
GRAIN, START = "schedule", "start"

FIRST_STEPS = 4
"""Enough steps for a few programs to teach the rule, and few enough that hardly any schedule has its first drop in
them."""
MIN_SHARE = 0.5
"""A linear decay over as few as four steps keeps at least half of the rate from step to step."""
_FIRST_GROUP = ".param_groups[0]"


class LearningRates(Part):
    """Follows the learning rate of the first group of each optimizer, and that of the scheduler."""

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
        """From now on, the first observed step of an optimizer need not be its first."""
        self._from_start = False
        self._clear()

    def occasions(self, window: Window) -> Iterator[Occasion]:
        """Yield one occasion at each update whose rate can be compared."""
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
            yield _occasion(START, Property(DOES_NOT_HALVE, LR), rate_now >= MIN_SHARE * old_rate, call, window, group)
        if self._announced is not None and len(self._schedulers) == len(self._steps) == 1:
            agrees = math.isclose(rate_now, self._announced, rel_tol=1e-6, abs_tol=1e-12)
            (scheduler,) = self._schedulers
            pair = optimizer, scheduler
            are_all_seen = self._from_start and window.step > 1
            if not (are_all_seen or agrees or pair in self._agreed):
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
