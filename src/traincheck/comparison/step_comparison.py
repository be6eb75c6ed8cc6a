"""Compares one step of two runs: which operations begin a difference, and which only receive one.

Note [Origins]
An operation is an *origin* if its results differ by more than the distance of its inputs and rounding explain (see Note
[What rounding explains]). All others with other results are *victims*. Where the programs execute different operations,
an operation that is the same in both may receive other values from them: then the stretch of different operations is
the origin, if what flows into it is equal.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from traincheck.comparison.alignment import Pair, Rename, aligned
from traincheck.comparison.distance import AMPLIFIES, distance, rounding
from traincheck.vocab.operations import (
    ACCUMULATED,
    AFTER,
    BACKWARD,
    BEFORE,
    FORWARD,
    GRADIENT,
    INPUT,
    SUM,
    UPDATE,
    Operation,
    Sketch,
    StepOperations,
)

DATA, RANDOM, INITIALISATION, CODE, GRADIENTS, NUMBERS = KINDS = (
    "data",
    "random state",
    "initial weights",
    "other operations",
    "gradients",
    "numbers",
)
"""Kinds of origins. *Other operations*: the runs execute different operations, or with different settings. *Gradients*:
the backwards are equal, and the gradients that an optimizer gets are not. *Numbers*: all else."""

SAME, ROUNDING, ORIGIN, VICTIM = "same", "rounding", "origin", "victim"
"""Verdicts on an operation that both runs have."""

ROUNDED = 1e-4
"""Explained differences up to this one count as rounding, others as victims."""

MOST_SEARCHED = 5
"""With so many origins, the search for values that an operation takes instead of others ends, as it takes long."""

SURE, ANOTHER, MUCH_NEARER = 0.01, 0.1, 0.01
"""An input with less uncertainty than the first, and farther than the second from that of the other run, is another
value: one that is nearer than the third of this distance exists elsewhere."""

UPDATE_AMPLIFIES = 1000.0
"""An update may divide a gradient by its own size, so that elements near zero take full steps in any direction."""


class Judged(NamedTuple):
    """The verdict on a pair of operations, and the relative distances of their inputs and results."""

    verdict: str
    inputs: float
    results: float


@dataclass(frozen=True)
class Difference:
    """An operation (or the begin of a stretch of different operations) with other results in the two runs.

    `inputs` and `results` are relative distances. `a` and `b` are the operation in each run, None where a run lacks it;
    `others_a` and `others_b` are all operations of a stretch.
    """

    step: int
    kind: str
    inputs: float
    results: float
    a: Operation | None
    b: Operation | None
    values: tuple[Sketch, Sketch] | None = None
    others_a: tuple[Operation, ...] = ()
    others_b: tuple[Operation, ...] = ()

    @property
    def operation(self) -> Operation:
        """The operation in the first run that has it."""
        found = self.a or self.b
        assert found is not None
        return found


class StepComparison:
    """The comparison of one step. `before` are the distances of parameters at the end of the step before, by name."""

    def __init__(
        self,
        a: StepOperations,
        b: StepOperations,
        rename: Rename = lambda name: name,
        before: dict[str, float] | None = None,
    ) -> None:
        self.step = a.step
        self.a, self.b = a, b
        self._before = before
        self.pairs: list[Pair] = aligned(a.operations, b.operations, rename)
        self.judged: list[Judged] = []
        """The verdict on each pair."""
        self._partner = dict(self.pairs)
        self._producers = _producers(a.operations), _producers(b.operations)
        self._unpaired = (
            set(range(len(a.operations))) - {i for i, _ in self.pairs},
            set(range(len(b.operations))) - {j for _, j in self.pairs},
        )
        self._uncertain: dict[int, float] = {}  # by value of the first run
        self._rewired: set[int] = set()  # operations of the first run that take other values in the second, by identity
        self.same = self.rounding = self.different = 0
        self.origins: list[Difference] = []
        self.victims: list[Difference] = []
        self.updated: dict[str, float] = {}
        """The distances of the parameters after the step."""
        self._compare()
        self._drop_healed()
        if not self.origins:
            self._add_lacking()

    def _compare(self) -> None:
        uncertain = self._uncertain
        gradients: dict[str, float] = {}
        initial: dict[str, float] = {}
        worst_backward = 0.0
        for index, a in enumerate(self.a.operations):
            if index not in self._partner:
                known = max((uncertain.get(value, 0.0) for value in a.inputs), default=0.0)
                uncertain.update(dict.fromkeys(a.outputs, known))
                continue
            b = self.b.operations[self._partner[index]]
            if a.phase == AFTER:
                self.judged.append(self._compare_state(a, b, initial.get(a.module, 0.0)))
                continue
            computed = a.phase in (FORWARD, BACKWARD) or a.name == INPUT
            if a.name == ACCUMULATED:
                computed = a.module not in self._never_whole
            results = self._distance(a.outputs, b.outputs, self._incoming(a), summands=computed)
            if a.phase == BEFORE:
                inputs = (self._before or {}).get(a.module, 0.0)
                initial[a.module] = results
            elif a.phase == UPDATE:
                inputs = max(gradients.get(a.module, 0.0), initial.get(a.module, 0.0))
                self.updated[a.module] = results
            else:
                inputs = max(self._input_distance(a, b), *(uncertain.get(value, 0.0) for value in a.inputs), 0.0)
            if a.phase == GRADIENT:
                inputs = max(inputs, worst_backward)
                gradients[a.module] = results
            uncertain.update(dict.fromkeys(a.outputs, max(inputs, results)))
            if a.phase == BACKWARD and a.name != SUM:
                worst_backward = max(worst_backward, inputs, results)
            self.judged.append(Judged(self._judge(a, b, inputs, results), inputs, results))

    @cached_property
    def _never_whole(self) -> set[str]:
        """The parameters whose gradients are still summands on the ranks of one run when they are used.

        Then their reduction is missing after the backward, and not what happens before the update.
        """
        pairs = ((self.a.operations[i], self.b.operations[j]) for i, j in self.pairs)
        return {
            a.module
            for a, b in pairs
            if a.phase == GRADIENT and math.isinf(self._distance(a.outputs, b.outputs, summands=False))
        }

    def _compare_state(self, a: Operation, b: Operation, initial: float) -> Judged:
        """Compare a parameter or buffer at the end of the step, which an operation wrote or something unknown."""
        values = a.outputs or a.inputs, b.outputs or b.inputs
        results = self._distance(*values, summands=False)
        inputs = max(initial, *(self._uncertain.get(value, 0.0) for value in values[0]))
        self.updated[a.module] = results
        a = Operation(AFTER, a.name, a.module, inputs=values[0], outputs=values[0])
        b = Operation(AFTER, b.name, b.module, inputs=values[1], outputs=values[1])
        stretch = self._stretch_before(a, b) if results > self._rounding(a, b) else None
        if stretch is None:
            return Judged(self._judge(a, b, inputs, results), inputs, results)
        self.different += 1
        self.origins.append(stretch)
        return Judged(VICTIM, inputs, results)

    def _drop_healed(self) -> None:
        """Drop operations that take other values, if no other result shows it: a list in another order has one norm."""
        if not self._rewired:
            return
        consumers: dict[int, list[int]] = {}  # by value: positions of pairs
        for position, (i, _) in enumerate(self.pairs):
            for value in self.a.operations[i].inputs:
                consumers.setdefault(value, []).append(position)
        healed: set[int] = set()
        for position in reversed(range(len(self.pairs))):
            operation = self.a.operations[self.pairs[position][0]]
            following = {each for value in operation.outputs for each in consumers.get(value, ())}
            if following and all(each in healed or self._is_equal(each) for each in following):
                healed.add(position)
        dropped = {id(self.a.operations[self.pairs[position][0]]) for position in healed} & self._rewired
        self.origins = [each for each in self.origins if each.others_a or each.others_b or id(each.a) not in dropped]

    def _is_equal(self, position: int) -> bool:
        """Whether the results of a pair differ by rounding of this operation alone."""
        i, j = self.pairs[position]
        return self.judged[position].results <= self._rounding(self.a.operations[i], self.b.operations[j])

    def _add_lacking(self) -> None:
        """Add the gradients, updates and state that only one run has. The values that they would have got are equal."""
        for run, operations in enumerate((self.a.operations, self.b.operations)):
            for index in sorted(self._unpaired[run]):
                operation = operations[index]
                if operation.phase in (GRADIENT, UPDATE, AFTER):
                    a, b = (operation, None) if run == 0 else (None, operation)
                    self.origins.append(Difference(self.step, CODE, 0.0, math.inf, a, b))

    def _judge(self, a: Operation, b: Operation, inputs: float, results: float) -> str:
        if results == 0.0:
            self.same += 1
            return SAME
        allowed = self._rounding(a, b)
        amplifies = UPDATE_AMPLIFIES if a.phase == UPDATE else 1.0 if a.phase == BEFORE else AMPLIFIES
        explained = a.name == SUM or results <= allowed + amplifies * inputs or amplifies * inputs >= 1.0
        if explained and results <= max(allowed, ROUNDED):
            self.rounding += 1
            return ROUNDING
        self.different += 1
        is_variable = a.phase in (BEFORE, GRADIENT) or a.name == ACCUMULATED
        kind = _kind(a, b) if math.isfinite(results) or is_variable else CODE
        difference = Difference(self.step, kind, inputs, results, a, b, self._sketches(a, b))
        stretch = self._stretch_before(a, b) if explained else None
        if stretch is not None:
            self.origins.append(stretch)
        elif explained and len(self.origins) < MOST_SEARCHED and self._takes_another_value(a, b):
            difference = replace(difference, kind=CODE)
            self._rewired.add(id(a))
            explained = False
        (self.victims if explained else self.origins).append(difference)
        return VICTIM if explained else ORIGIN

    # -- distances -------------------------------------------------------------------------------------------------

    def _values(self, run: int, numbers: Sequence[int]) -> list[Sketch]:
        values = (self.a, self.b)[run].values
        return [values[number] for number in numbers]

    def _distance(self, a: Sequence[int], b: Sequence[int], least: float = 0.0, *, summands: bool = True) -> float:
        if len(a) != len(b):
            return math.inf
        pairs = zip(self._values(0, a), self._values(1, b), strict=True)
        return max((distance(x, y, least, summands=summands) for x, y in pairs), default=0.0)

    def _incoming(self, operation: Operation) -> float:
        """The largest norm of the gradients that an operation of the backward takes."""
        if operation.phase != BACKWARD:
            return 0.0
        producers, operations, values = self._producers[0], self.a.operations, self.a.values
        made = [each for each in operation.inputs if each in producers]
        norms = (values[each].norm for each in made if operations[producers[each]].phase == BACKWARD)
        return max(filter(math.isfinite, norms), default=0.0)

    def _input_distance(self, a: Operation, b: Operation) -> float:
        if len(a.inputs) == len(b.inputs):
            return self._distance(a.inputs, b.inputs)
        return 0.0 if _all_near(self._values(0, a.inputs), self._values(1, b.inputs)) else math.inf

    def _rounding(self, a: Operation, b: Operation) -> float:
        """By how much rounding lets results differ. Values from before the step have the same bits, or were cast."""
        results = self._values(0, a.outputs), self._values(1, b.outputs)
        if a.phase == BEFORE and [each.dtype for each in results[0]] == [each.dtype for each in results[1]]:
            return 0.0
        inputs = self._values(0, a.inputs), self._values(1, b.inputs)
        return max(rounding(*both) for both in zip(results, inputs, strict=True))

    def _sketches(self, a: Operation, b: Operation) -> tuple[Sketch, Sketch] | None:
        pairs = list(zip(self._values(0, a.outputs), self._values(1, b.outputs), strict=False))
        return max(pairs, key=lambda pair: distance(*pair)) if pairs else None

    # -- stretches of different operations -------------------------------------------------------------------------

    def _stretch_before(self, a: Operation, b: Operation) -> Difference | None:
        """The different operations that computed the inputs of an operation, if their own inputs are equal."""
        for x, y in zip(a.inputs, b.inputs, strict=False):
            values = self.a.values[x], self.b.values[y]
            producer = self._producers[0].get(x)
            least = self._incoming(self.a.operations[producer]) if producer is not None else 0.0
            own, own_inputs = self._back(0, x)
            known = max((self._uncertain.get(value, 0.0) for value in own_inputs), default=0.0)
            if distance(*values, least) <= rounding(values, []) + AMPLIFIES * known:
                continue
            other, other_inputs = self._back(1, y)
            if not own and not other:
                continue
            if _all_near(self._values(0, own_inputs), self._values(1, other_inputs)):
                operations_a = tuple(self.a.operations[i] for i in own)
                operations_b = tuple(self.b.operations[j] for j in other)
                self._unpaired[0].difference_update(own)  # reported once
                self._unpaired[1].difference_update(other)
                first_a, first_b = (operations_a or (None,))[0], (operations_b or (None,))[0]
                return Difference(
                    self.step, CODE, 0.0, distance(*values), first_a, first_b, values, operations_a, operations_b
                )
        return None

    def _takes_another_value(self, a: Operation, b: Operation) -> bool:
        """Whether an operation takes a value in the first run, and another in the second, and both runs have both.

        Then no other operation begins the difference.
        """
        if a.phase not in (FORWARD, BACKWARD) or len(a.inputs) != len(b.inputs):
            return False
        for x, y in zip(a.inputs, b.inputs, strict=True):
            own, other = self.a.values[x], self.b.values[y]
            if own.size < 2 or AMPLIFIES * self._uncertain.get(x, 0.0) >= SURE:
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
        producers, unpaired = self._producers[run], self._unpaired[run]
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


def _kind(a: Operation, b: Operation) -> str:
    if a.phase == BEFORE:
        return DATA if a.name == INPUT else INITIALISATION
    if a.random or b.random:
        return RANDOM
    if a.settings != b.settings:
        return CODE
    return GRADIENTS if a.phase == GRADIENT or a.name == ACCUMULATED else NUMBERS
