"""The form of the values that functions of a program take and return, and how these values relate to each other.

Good runs show what belongs together: advantages sum to zero in groups, a mask has as many ones in each row as there are
sampled tokens, old and new log-probabilities are equal before the first update and differ afterwards. See Note [Values
that say nothing] in sources/functions/value_forms.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from traincheck.relations.base import short
from traincheck.relations.parts import StatelessPart, named
from traincheck.vocab.demand import BEFORE_UPDATE, FAILS, FORM, HOLDS, MARK, TENSORS, VALUES, Demand
from traincheck.vocab.events import Window
from traincheck.vocab.occasion import Occasion, Property, Subject
from traincheck.vocab.properties import VALUES_ARE

QUANTITY = f"{VALUES}.{FORM}"


class ValueForms(StatelessPart):
    """Yields an occasion for each description: what is true of the values, and what is not."""

    def occasions(self, window: Window) -> Iterator[Occasion]:
        for reading in window.readings:
            if named(reading) == QUANTITY:
                grain, *lines = str(reading.value).split("\n")
                held, failed = _properties(lines, HOLDS), _properties(lines, FAILS)
                yield Occasion(Subject(QUANTITY, grain), (), held, failed, reading.call, (reading.variable,))

    @staticmethod
    def speaks_of(subject: Subject) -> bool:
        return subject.api == QUANTITY

    @staticmethod
    def needs(subject: Subject, prop: Property) -> Demand:
        function = subject.grain.removesuffix(BEFORE_UPDATE)
        calls = Demand() if function.startswith(MARK) else Demand.of_calls(function, values=(TENSORS,))
        return calls | Demand.of_readings(QUANTITY)

    @staticmethod
    def describe(subject: Subject, prop: Property) -> str:
        function = short(subject.grain.removesuffix(BEFORE_UPDATE))
        when = " after a rollout and before an update" if subject.grain.endswith(BEFORE_UPDATE) else ""
        calls = f"the {function}" if function.startswith(MARK) else f"calls of {function}"
        return f"in {calls}{when}, {prop.object} {prop.detail}"


def _properties(lines: Sequence[str], prefix: str) -> frozenset[Property]:
    """The properties in the lines with this prefix: what a line is about, and what it says."""
    several = (line.removeprefix(prefix).partition(" ") for line in lines if line.startswith(prefix))
    return frozenset(Property(VALUES_ARE, name, says) for name, _, says in several)
