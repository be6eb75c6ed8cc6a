"""How a program treats its parameters, and what its modules are: what good runs never showed is a violation.

Sources describe for each model which parameters are trainable, in an optimizer, decayed, shared (see Note [What people
tune] in sources/optimizers/parameter_treatment.py), and the classes and attributes of its modules. A program may change
both while it trains, by unfreezing layers for example, so a rule knows the lines that some descriptions of a model had,
and those that all of them had.
"""

from __future__ import annotations

from collections.abc import Iterator

from traincheck.relations.parts import UPDATE, ReadingPart, named
from traincheck.vocab.demand import MODULES, TREATED, TREATMENT, Demand
from traincheck.vocab.events import Window
from traincheck.vocab.occasion import Occasion, Property, Subject
from traincheck.vocab.properties import MODULE_IS, TREATS_SO

_PARAMETERS, _MODULES = f"{TREATMENT}.{TREATED}", f"{TREATMENT}.{MODULES}"
_VERBS = {_PARAMETERS: TREATS_SO, _MODULES: MODULE_IS}

MODELS = Demand.of_calls(UPDATE) | Demand.of_readings(*_VERBS)
"""The demand for all descriptions, see own_runs.py."""


class ModelDescriptions(ReadingPart):
    """Yields two occasions for each description of a model: its lines are among those of good runs, and none is missing
    that all of them had."""

    def occasions(self, window: Window) -> Iterator[Occasion]:
        for reading in window.readings:
            if reading.kind == TREATMENT:
                quantity = named(reading)
                subject = Subject(quantity, f"model {reading.variable}")
                lines = str(reading.value).split("\n")
                held = frozenset(Property(_VERBS[quantity], quantity, line) for line in lines)
                for failed in (frozenset[Property](), None):
                    yield Occasion(subject, (), held, failed, reading.call, (reading.variable,))

    @classmethod
    def speaks_of(cls, subject: Subject) -> bool:
        return subject.api in _VERBS

    @staticmethod
    def needs(subject: Subject, prop: Property) -> Demand:
        return Demand.of_calls(UPDATE) | Demand.of_readings(subject.api)

    @staticmethod
    def describe(subject: Subject, prop: Property) -> str:
        model = subject.grain.removeprefix("model ")
        if subject.api == _MODULES:
            return f"the modules of {model} have the classes and attributes of good runs"
        return f"the parameters of {model} are treated as in good runs"
