"""The operations of each module: what good runs never had is a violation.

Sources describe the graph of a backward as lines, see Note [A graph in lines] in sources/gradients/graphs.py. A program
may have several graphs (a generator and a discriminator take turns), so a rule knows for each module the lines that
some backwards had, and those that all of them had.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from traincheck.relations.parts import BACKWARD
from traincheck.vocab.demand import GRAPH, GRAPH_NUMBERS, GRAPH_OPERATIONS, Demand
from traincheck.vocab.events import Reading, Window, without_positions
from traincheck.vocab.occasion import Occasion, Property, Subject
from traincheck.vocab.properties import HAS, USES_NUMBER

DESCRIPTIONS = Demand.of_calls(BACKWARD) | Demand.of_readings(f"{GRAPH}.{GRAPH_OPERATIONS}", f"{GRAPH}.{GRAPH_NUMBERS}")
"""The demand for all descriptions, see own_runs.py."""

OPERATIONS, NUMBERS = f"{GRAPH}.{GRAPH_OPERATIONS}", f"{GRAPH}.{GRAPH_NUMBERS}"

_UNDER = " under "


class Computation:
    """Yields an occasion for each description of a module, and one for all modules of a kind in a backward.

    The first shows in which module an operation is new, the second that an operation is missing in all of them. Numbers
    are judged by operation and attribute.
    """

    def occasions(self, window: Window) -> Iterator[Occasion]:
        groups: dict[tuple[int, Subject], list[Reading]] = {}
        for reading in window.readings:
            if reading.kind == GRAPH and reading.attribute == GRAPH_NUMBERS:
                yield from _of_numbers(reading)
            elif reading.kind == GRAPH:
                origin, _ = _split(reading)
                subject = Subject(OPERATIONS, f"{without_positions(reading.variable)}{_UNDER}{origin}")
                groups.setdefault((reading.call, subject), []).append(reading)
        for (call, subject), readings in groups.items():
            found = [(reading.variable, _elements(HAS, OPERATIONS, _split(reading)[1])) for reading in readings]
            for variable, held in found:
                yield Occasion(subject, (), held, frozenset(), call, (variable,))
            together = frozenset[Property]().union(*(held for _, held in found))
            yield Occasion(subject, (), together, None, call, tuple(variable for variable, _ in found))

    def forget(self) -> None:
        """There is no state."""

    @staticmethod
    def speaks_of(subject: Subject) -> bool:
        return subject.api in (OPERATIONS, NUMBERS)

    @staticmethod
    def needs(subject: Subject, prop: Property) -> Demand:
        return Demand.of_calls(BACKWARD) | Demand.of_readings(subject.api)

    @staticmethod
    def is_optional_practice(prop: Property) -> bool:
        return False

    @staticmethod
    def describe(subject: Subject, prop: Property) -> str:
        place = subject.grain.partition(_UNDER)[0]
        if subject.api == NUMBERS:
            return f"{place} is as in good runs"
        return f"gradients flow through no operations of {place} but those of good runs"


def _of_numbers(reading: Reading) -> Iterator[Occasion]:
    origin, lines = _split(reading)
    numbers: dict[str, list[str]] = {}
    for line in lines:
        operand, _, number = line.partition("=")
        numbers.setdefault(operand, []).append(number)
    for operand, values in numbers.items():
        subject = Subject(NUMBERS, f"{operand} in {without_positions(reading.variable)}{_UNDER}{origin}")
        held = _elements(USES_NUMBER, NUMBERS, values)
        yield Occasion(subject, (), held, frozenset(), reading.call, (reading.variable,))


def _split(reading: Reading) -> tuple[str, list[str]]:
    """The release and the device that a description is of, and its lines."""
    origin, *lines = str(reading.value).split("\n")
    return origin, lines


def _elements(verb: str, quantity: str, lines: Iterable[str]) -> frozenset[Property]:
    return frozenset(Property(verb, quantity, line) for line in lines)
