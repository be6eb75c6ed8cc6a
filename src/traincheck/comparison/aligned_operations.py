"""The operations of one step of two runs next to each other, with a verdict on each."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from traincheck.comparison.alignment import is_of_variable
from traincheck.comparison.difference import ORIGIN, VICTIM, Difference
from traincheck.comparison.step_comparison import StepComparison
from traincheck.vocab.operations import AFTER, BEFORE, Operation, Sketch

UNMATCHED = "unmatched"
"""The verdict on an operation that one run lacks, if it is not an origin."""


@dataclass(frozen=True)
class AlignedOperation:
    """An operation in both runs, None where a run lacks it, and the first of its results.

    `distance` is the relative distance of its results, for an origin that only one run has that of what it leads to. It
    is infinite for other operations that only one run has.
    """

    verdict: str
    distance: float
    a: Operation | None
    b: Operation | None
    values: tuple[Sketch | None, Sketch | None]

    @property
    def operation(self) -> Operation:
        """The operation in the first run that has it."""
        found = self.a or self.b
        assert found is not None
        return found


def aligned_operations(compared: StepComparison, origins: Sequence[Difference]) -> list[AlignedOperation]:
    """The operations of a step in the order of the first run.

    Those of the second run alone stand behind their predecessors. Values with which the step begins come first.
    `origins` are the differences that count as origins.
    """
    rows = list(_in_order(compared, _results_of(origins)))
    return [row for row in rows if row.operation.phase == BEFORE] + [
        row for row in rows if row.operation.phase != BEFORE
    ]


def results_of(operation: Operation) -> tuple[int, ...]:
    """The values that an operation returns. State that another operation wrote is an input of its operation."""
    return operation.outputs or (operation.inputs if operation.phase == AFTER else ())


def _key(operation: Operation) -> object:
    """Identifies an operation of a run; a variable by its name, as comparisons make operations for it."""
    if is_of_variable(operation):
        return operation.phase, operation.name, operation.module
    return id(operation)


def _results_of(origins: Sequence[Difference]) -> dict[object, float]:
    """The distances of the results of origins, by the keys of all their operations."""
    return {
        _key(operation): origin.results
        for origin in origins
        for operation in (origin.a, origin.b, *origin.others_a, *origin.others_b)
        if operation is not None
    }


def _in_order(compared: StepComparison, origins: dict[object, float]) -> Iterator[AlignedOperation]:
    own, other = compared.a, compared.b
    judged = {i: (j, each) for (i, j), each in zip(compared.pairs, compared.judged, strict=True)}
    waiting = _by_predecessor(len(other.operations), {j: i for i, j in compared.pairs})

    def alone(operation: Operation, run: int) -> AlignedOperation:
        verdict = ORIGIN if _key(operation) in origins else UNMATCHED
        value, apart = _first(operation, (own, other)[run].values), origins.get(_key(operation), math.inf)
        if run == 0:
            return AlignedOperation(verdict, apart, operation, None, (value, None))
        return AlignedOperation(verdict, apart, None, operation, (None, value))

    for index in range(-1, len(own.operations)):
        if index >= 0:
            operation = own.operations[index]
            if index in judged:
                partner, (verdict, _, results) = judged[index]
                if verdict == ORIGIN and _key(operation) not in origins:
                    verdict = VICTIM
                twin = other.operations[partner]
                values = _first(operation, own.values), _first(twin, other.values)
                yield AlignedOperation(verdict, results, operation, twin, values)
            else:
                yield alone(operation, 0)
        for number in waiting.get(index, ()):
            yield alone(other.operations[number], 1)


def _by_predecessor(count: int, partner: dict[int, int]) -> dict[int, list[int]]:
    """The operations of the second run without a partner, by the index of the operation behind which they stand."""
    waiting: dict[int, list[int]] = {}
    before = -1
    for number in range(count):
        if number in partner:
            before = partner[number]
        else:
            waiting.setdefault(before, []).append(number)
    return waiting


def _first(operation: Operation, values: Sequence[Sketch]) -> Sketch | None:
    results = results_of(operation)
    return values[results[0]] if results else None
