"""The operations of each module and function: what good runs never had is a violation.

Sources describe the graph of a backward as lines, see Note [A graph in lines] in sources/gradients/graphs.py. A program
may have several graphs (a generator and a discriminator take turns), so a rule knows for each module the lines that
some backwards had, and those that all of them had. The same holds for what functions of the project compute without
gradients in a window, see Note [What no gradient shows] in sources/functions/no_grad_operations.py. A branch that the
program took once is not judged, see Note [Branches that the data choose] in sources/gradients/graph_source.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain

from traincheck.relations.parts import BACKWARD, StatelessPart
from traincheck.vocab.demand import COMPILED_CODE, GRAPH, NO_GRAD, OPERATION_NUMBERS, OPERATIONS, Demand
from traincheck.vocab.events import END, EVAL, PARTIAL, SETUP, TRAIN, UNSETTLED, Reading, Window, without_positions
from traincheck.vocab.occasion import Occasion, Property, Subject
from traincheck.vocab.properties import HAS, SOMETIMES, USES_NUMBER

_KINDS = (GRAPH, NO_GRAD)
_SUBJECTS = frozenset(f"{kind}.{attribute}" for kind in _KINDS for attribute in (OPERATIONS, OPERATION_NUMBERS))

DESCRIPTIONS = Demand.of_calls(BACKWARD) | Demand.of_readings(*sorted(_SUBJECTS))
"""The demand for all descriptions, see own_runs.py."""

UNDER = " under "
"""Between what computes and the release that the lines are of, in a grain."""

_STAGES = {SETUP: "in the set-up", TRAIN: "in training", EVAL: "in evaluation", END: "at the end"}


class Computation(StatelessPart):
    """Yields an occasion for each description of a module or function, and one for all modules of a kind in a backward.

    The first shows in which module an operation is new, the second that an operation is missing in all of them. Numbers
    are judged by operation and attribute. What a function computes depends on the stage.
    """

    def occasions(self, window: Window) -> Iterator[Occasion]:
        groups: dict[tuple[int, Subject], list[Reading]] = {}
        for reading in window.readings:
            if reading.kind not in _KINDS:
                continue
            origin, _ = _split(reading)
            place = without_positions(reading.variable)
            stage = f" ({window.stage})" if reading.kind == NO_GRAD else ""
            grain = f"{place}{stage}{UNDER}{origin}"
            if reading.attribute == OPERATION_NUMBERS:
                yield from _of_numbers(reading, grain)
            else:
                subject = Subject(f"{reading.kind}.{reading.attribute}", grain)
                groups.setdefault((reading.call, subject), []).append(reading)
        for (call, subject), readings in groups.items():
            lines = {reading.variable: _split(reading)[1] for reading in readings}
            found = [(name, _elements(HAS, subject.api, map(_plain, of_name))) for name, of_name in lines.items()]
            unsettled = any(reading.role == UNSETTLED for reading in readings)
            for variable, held in found:
                yield Occasion(subject, (), held, frozenset(), call, (variable,), unsettled=unsettled)
            if all(reading.role != PARTIAL for reading in readings):
                together = frozenset[Property]().union(*(held for _, held in found))
                marked = (_plain(line) for line in chain(*lines.values()) if line.startswith(SOMETIMES))
                sometimes = _elements(HAS, subject.api, marked)
                yield Occasion(
                    subject, (), together, None, call, tuple(lines), sometimes=sometimes, unsettled=unsettled
                )

    @staticmethod
    def speaks_of(subject: Subject) -> bool:
        return subject.api in _SUBJECTS

    @staticmethod
    def needs(subject: Subject, prop: Property) -> Demand:
        calls = Demand.of_calls(BACKWARD) if subject.api.startswith(GRAPH) else Demand()
        return calls | Demand.of_readings(subject.api)

    @staticmethod
    def describe(subject: Subject, prop: Property) -> str:
        place = subject.grain.partition(UNDER)[0]
        if subject.api.endswith(OPERATION_NUMBERS):
            return f"{place} is as in good runs"
        if subject.api.startswith(NO_GRAD):
            function, _, stage = place.rpartition(" (")
            return f"{function} computes nothing without gradients {_STAGES[stage[:-1]]} but what good runs computed"
        if place.startswith(COMPILED_CODE):
            return f"{place} has no operations but those of good runs"
        return f"gradients flow through no operations of {place} but those of good runs"


def _of_numbers(reading: Reading, grain: str) -> Iterator[Occasion]:
    _, lines = _split(reading)
    quantity = f"{reading.kind}.{reading.attribute}"
    numbers: dict[str, list[str]] = {}
    for line in lines:
        operand, _, number = line.partition("=")
        numbers.setdefault(operand, []).append(number)
    for operand, values in numbers.items():
        subject = Subject(quantity, f"{operand} in {grain}")
        held = _elements(USES_NUMBER, quantity, values)
        unsettled = reading.role == UNSETTLED
        yield Occasion(subject, (), held, frozenset(), reading.call, (reading.variable,), unsettled=unsettled)


def _split(reading: Reading) -> tuple[str, list[str]]:
    """The release and the device that a description is of, and its lines."""
    origin, *lines = str(reading.value).split("\n")
    return origin, lines


def _plain(line: str) -> str:
    return line.removeprefix(SOMETIMES)


def _elements(verb: str, quantity: str, lines: Iterable[str]) -> frozenset[Property]:
    return frozenset(Property(verb, quantity, line) for line in lines)
