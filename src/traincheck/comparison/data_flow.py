"""How values flow through the operations of one step of two runs, and where other values begin to flow.

Note [Stretches]
Where the programs execute different operations, an operation that is the same in both may receive other values from
them. Then the stretch of different operations is the origin, if what flows into it is equal. Or an operation takes a
value that exists in both runs, and in the other run another one: then the operation itself is the origin.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property

from traincheck.comparison.alignment import Pair, Rename, aligned
from traincheck.comparison.difference import ANOTHER, CODE, Difference
from traincheck.comparison.distance import AMPLIFIES, distance, rounding
from traincheck.vocab.operations import BACKWARD, BEFORE, FORWARD, Operation, Sketch, StepOperations

SURE, MUCH_NEARER = 0.01, 0.01
"""An input with less uncertainty than the first is known well. A value that is nearer than the second of a distance is
the same, compared with one at this distance."""


class DataFlow:
    """The operations of one step of two runs, aligned.

    `pairs` are the indices of operations that both runs have, `partner` the same from the first run to the second, and
    `unpaired` the indices of all others. `uncertain` is how far the values of the first run are from those of the
    second by what was found so far. `noise` is how much noise explains, by value of the first run.
    """

    def __init__(
        self, a: StepOperations, b: StepOperations, rename: Rename, noise: Mapping[int, float] | None = None
    ) -> None:
        self.a, self.b = a, b
        self._noise = noise or {}
        self.pairs: list[Pair] = aligned(a.operations, b.operations, rename)
        self.partner = dict(self.pairs)
        self.unpaired = (
            set(range(len(a.operations))) - {i for i, _ in self.pairs},
            set(range(len(b.operations))) - {j for _, j in self.pairs},
        )
        self.uncertain: dict[int, float] = {}
        self._producers = _producers(a.operations), _producers(b.operations)

    # -- distances -------------------------------------------------------------------------------------------------

    def sketches_of(self, run: int, numbers: Sequence[int]) -> list[Sketch]:
        """The sketches of values of a run."""
        values = (self.a, self.b)[run].values
        return [values[number] for number in numbers]

    def distance(self, a: Sequence[int], b: Sequence[int], least: float = 0.0, *, summands: bool = True) -> float:
        """The largest distance of values in their order, see `distance`."""
        if len(a) != len(b):
            return math.inf
        pairs = zip(self.sketches_of(0, a), self.sketches_of(1, b), strict=True)
        return max((distance(x, y, least, summands=summands) for x, y in pairs), default=0.0)

    def incoming(self, operation: Operation) -> float:
        """The largest norm of the gradients that an operation of the backward takes."""
        if operation.phase != BACKWARD:
            return 0.0
        producers, operations, values = self._producers[0], self.a.operations, self.a.values
        made = [each for each in operation.inputs if each in producers]
        norms = (values[each].norm for each in made if operations[producers[each]].phase == BACKWARD)
        return max(filter(math.isfinite, norms), default=0.0)

    def input_distance(self, a: Operation, b: Operation) -> float:
        """How far the inputs of an operation are apart."""
        if len(a.inputs) == len(b.inputs):
            return self.distance(a.inputs, b.inputs)
        return 0.0 if _all_near(self.sketches_of(0, a.inputs), self.sketches_of(1, b.inputs)) else math.inf

    def rounding(self, a: Operation, b: Operation) -> float:
        """By how much rounding and noise let results differ. Values from before the step have the same bits, or were
        cast."""
        results = self.sketches_of(0, a.outputs), self.sketches_of(1, b.outputs)
        if a.phase == BEFORE and [each.dtype for each in results[0]] == [each.dtype for each in results[1]]:
            return 0.0
        inputs = self.sketches_of(0, a.inputs), self.sketches_of(1, b.inputs)
        noise = max((self._noise.get(value, 0.0) for value in a.outputs), default=0.0)
        return max(noise, *(rounding(*both) for both in zip(results, inputs, strict=True)))

    def farthest(self, a: Operation, b: Operation) -> tuple[Sketch, Sketch] | None:
        """The results of an operation that are farthest apart."""
        pairs = list(zip(self.sketches_of(0, a.outputs), self.sketches_of(1, b.outputs), strict=False))
        return max(pairs, key=lambda pair: distance(*pair)) if pairs else None

    def is_scaled_later(self, a: Operation, b: Operation, *, summands: bool) -> bool:
        """Whether gradients are equal after operations that only one run applies to each of them, with numbers alone.

        Clipping also makes gradients equal, but its operations take a factor that was computed.
        """
        scaled = [self._scaled[0].get(x, x) for x in a.outputs], [self._scaled[1].get(y, y) for y in b.outputs]
        if scaled == (list(a.outputs), list(b.outputs)):
            return False
        return self.distance(*scaled, summands=summands) <= self.rounding(a, b)

    @cached_property
    def _scaled(self) -> tuple[dict[int, int], dict[int, int]]:
        """For each run, the result of such an operation by the value that it takes."""
        runs: tuple[dict[int, int], dict[int, int]] = {}, {}
        for run, step in enumerate((self.a, self.b)):
            for index in sorted(self.unpaired[run]):
                operation = step.operations[index]
                if operation.phase == FORWARD and len(operation.inputs) == len(operation.outputs):
                    runs[run].update(zip(operation.inputs, operation.outputs, strict=True))
        return runs

    # -- stretches of different operations -------------------------------------------------------------------------

    def stretch_before(self, a: Operation, b: Operation) -> Difference | None:
        """The different operations that computed the inputs of an operation, if their own inputs are equal."""
        for x, y in zip(a.inputs, b.inputs, strict=False):
            values = self.a.values[x], self.b.values[y]
            producer = self._producers[0].get(x)
            least = self.incoming(self.a.operations[producer]) if producer is not None else 0.0
            own, own_inputs = self._back(0, x)
            known = max((self.uncertain.get(value, 0.0) for value in own_inputs), default=0.0)
            if distance(*values, least) <= rounding(values, []) + AMPLIFIES * known:
                continue
            other, other_inputs = self._back(1, y)
            if not own and not other:
                continue
            if _all_near(self.sketches_of(0, own_inputs), self.sketches_of(1, other_inputs)):
                operations_a = tuple(self.a.operations[i] for i in own)
                operations_b = tuple(self.b.operations[j] for j in other)
                self.unpaired[0].difference_update(own)  # reported once
                self.unpaired[1].difference_update(other)
                first_a, first_b = (operations_a or (None,))[0], (operations_b or (None,))[0]
                return Difference(
                    self.a.step, CODE, 0.0, distance(*values), first_a, first_b, values, operations_a, operations_b
                )
        return None

    def takes_another_value(self, a: Operation, b: Operation) -> bool:
        """Whether an operation takes a value in the first run, and another in the second, and both runs have both.

        Then no other operation begins the difference.
        """
        if a.phase not in (FORWARD, BACKWARD) or len(a.inputs) != len(b.inputs):
            return False
        for x, y in zip(a.inputs, b.inputs, strict=True):
            own, other = self.a.values[x], self.b.values[y]
            if own.size < 2 or AMPLIFIES * self.uncertain.get(x, 0.0) >= SURE:
                continue
            apart = distance(own, other)
            if (
                apart > ANOTHER
                and self._exists(1, own, apart, before=b.outputs[0])
                and self._exists(0, other, apart, before=a.outputs[0])
            ):
                return True
        return False

    def _exists(self, run: int, sketch: Sketch, apart: float, before: int) -> bool:
        """Whether a run has a value before another one that is much nearer than `apart`."""
        values = (self.a, self.b)[run].values
        same_size = self._by_size[run].get(sketch.size, ())
        return any(number < before and distance(sketch, values[number]) < MUCH_NEARER * apart for number in same_size)

    @cached_property
    def _by_size(self) -> tuple[dict[int, list[int]], dict[int, list[int]]]:
        """The values of each run that can be compared, by size."""
        runs: tuple[dict[int, list[int]], dict[int, list[int]]] = {}, {}
        for by_size, step in zip(runs, (self.a, self.b), strict=True):
            for number, sketch in enumerate(step.values):
                if sketch.packed_projections:
                    by_size.setdefault(sketch.size, []).append(number)
        return runs

    def _back(self, run: int, value: int) -> tuple[list[int], list[int]]:
        """The operations without a partner that computed a value, in order, and the values that they began with."""
        operations = (self.a, self.b)[run].operations
        producers, unpaired = self._producers[run], self.unpaired[run]
        found: set[int] = set()
        begun: dict[int, None] = {}
        waiting = [value]
        while waiting:
            number = waiting.pop()
            producer = producers.get(number)
            if producer is None or producer not in unpaired:
                begun[number] = None
            elif producer not in found:
                found.add(producer)
                waiting += operations[producer].inputs
        return sorted(found), list(begun)


def _producers(operations: Sequence[Operation]) -> dict[int, int]:
    return {value: index for index, operation in enumerate(operations) for value in operation.outputs}


def _is_near(a: Sketch, b: Sketch) -> bool:
    return distance(a, b) <= rounding([a, b], [])


def _all_near(a: Sequence[Sketch], b: Sequence[Sketch]) -> bool:
    """Whether each value of the smaller set has an equal one in the other."""
    few, many = sorted((a, b), key=len)
    return all(any(_is_near(x, y) for y in many) for x in few)
