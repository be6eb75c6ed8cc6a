"""How a program treats its parameters: what good runs never did is a violation.

A source describes for each model which parameters are trainable, in an optimizer, decayed, shared (see Note [What
people tune] in sources/optimizers/parameter_treatment.py). A program may change that while it trains, by unfreezing
layers for example, so a rule knows the lines that some descriptions of a model had, and those that all of them had.
"""

from __future__ import annotations

from collections.abc import Iterator

from traincheck.relations.parts import UPDATE, ReadingPart
from traincheck.vocab.demand import TREATED, TREATMENT, Demand
from traincheck.vocab.events import Window
from traincheck.vocab.occasion import Occasion, Property, Subject
from traincheck.vocab.properties import TREATS_SO

QUANTITY = f"{TREATMENT}.{TREATED}"

TREATMENTS = Demand.of_calls(UPDATE) | Demand.of_readings(QUANTITY)
"""The demand for all descriptions, see own_runs.py."""


class ParameterTreatment(ReadingPart):
    """Yields two occasions for each description of a model: its lines are among those of good runs, and none is missing
    that all of them had."""

    def occasions(self, window: Window) -> Iterator[Occasion]:
        for reading in window.readings:
            if reading.kind == TREATMENT:
                subject = Subject(QUANTITY, f"model {reading.variable}")
                held = frozenset(Property(TREATS_SO, QUANTITY, line) for line in str(reading.value).split("\n"))
                for failed in (frozenset[Property](), None):
                    yield Occasion(subject, (), held, failed, reading.call, (reading.variable,))

    @classmethod
    def speaks_of(cls, subject: Subject) -> bool:
        return subject.api == QUANTITY

    @staticmethod
    def needs(subject: Subject, prop: Property) -> Demand:
        return TREATMENTS

    @staticmethod
    def describe(subject: Subject, prop: Property) -> str:
        return f"the parameters of {subject.grain.removeprefix('model ')} are treated as in good runs"
