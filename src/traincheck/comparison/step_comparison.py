"""Compares one step of two runs: which operations begin a difference, and which only receive one.

Note [Origins]
An operation is an *origin* if its results differ by more than the distance of its inputs and rounding explain (see Note
[What rounding explains]), or if it belongs to a stretch of different operations (see Note [Stretches]). All others with
other results are *victims*.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property

from traincheck.comparison.alignment import Pair, Rename, unchanged
from traincheck.comparison.data_flow import DataFlow
from traincheck.comparison.difference import (
    CODE,
    DATA,
    GRADIENTS,
    INITIALISATION,
    NUMBERS,
    ORIGIN,
    RANDOM,
    ROUNDED,
    ROUNDING,
    SAME,
    VICTIM,
    Difference,
    Judged,
)
from traincheck.comparison.distance import AMPLIFIES
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
    StepOperations,
)

MOST_SEARCHED = 5
"""With so many origins, the search for values that an operation takes instead of others ends, as it takes long."""

UPDATE_AMPLIFIES = 1000.0
"""An update may divide a gradient by its own size, so that elements near zero take full steps in any direction."""


class StepComparison:
    """The comparison of one step.

    `before` are the distances of parameters at the end of the step before, by name. `noise` is how much noise explains
    of the distance of a value, by its number in the first run.
    """

    def __init__(
        self,
        a: StepOperations,
        b: StepOperations,
        rename: Rename = unchanged,
        before: dict[str, float] | None = None,
        noise: Mapping[int, float] | None = None,
    ) -> None:
        self.step = a.step
        self.a, self.b = a, b
        self._before, self._rename = before, rename
        self._flow = DataFlow(a, b, rename, noise)
        self.pairs: list[Pair] = self._flow.pairs
        self.judged: list[Judged] = []
        """The verdict on each pair."""
        self._rewired: set[int] = set()  # operations of the first run that take other values in the second, by identity
        self.same = self.rounding = self.different = 0
        self.origins: list[Difference] = []
        self.victims: list[Difference] = []
        self.updated: dict[str, float] = {}
        """The distances of the parameters after the step."""
        self._compare()
        self._drop_corrected()
        self._drop_healed()
        if not self.origins:
            self._add_lacking()

    def _compare(self) -> None:
        uncertain = self._flow.uncertain
        gradients: dict[str, float] = {}
        initial: dict[str, float] = {}
        worst_backward = 0.0
        lacking = self._names_of_lacking(GRADIENT)
        for index, a in enumerate(self.a.operations):
            if index not in self._flow.partner:
                known = max((uncertain.get(value, 0.0) for value in a.inputs), default=0.0)
                uncertain.update(dict.fromkeys(a.outputs, known))
                continue
            b = self.b.operations[self._flow.partner[index]]
            if a.phase == AFTER:
                self.judged.append(self._compare_state(a, b, initial.get(a.module, 0.0)))
                continue
            computed = a.phase in (FORWARD, BACKWARD) or a.name == INPUT
            if a.name == ACCUMULATED:
                computed = a.module not in self._never_whole
            results = self._flow.distance(a.outputs, b.outputs, self._flow.incoming(a), summands=computed)
            if a.phase == BEFORE:
                inputs = (self._before or {}).get(a.module, 0.0)
                initial[a.module] = results
            elif a.phase == UPDATE:
                inputs = max(gradients.get(a.module, 0.0), initial.get(a.module, 0.0))
                if a.module in lacking:
                    inputs = math.inf
                self.updated[a.module] = results
            else:
                inputs = max(self._flow.input_distance(a, b), *(uncertain.get(value, 0.0) for value in a.inputs), 0.0)
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
            if a.phase == GRADIENT and math.isinf(self._flow.distance(a.outputs, b.outputs, summands=False))
        }

    def _compare_state(self, a: Operation, b: Operation, initial: float) -> Judged:
        """Compare a parameter or buffer at the end of the step, which an operation wrote or something unknown."""
        values = a.outputs or a.inputs, b.outputs or b.inputs
        results = self._flow.distance(*values, summands=False)
        inputs = max(initial, *(self._flow.uncertain.get(value, 0.0) for value in values[0]))
        self.updated[a.module] = results
        a = Operation(AFTER, a.name, a.module, inputs=values[0], outputs=values[0])
        b = Operation(AFTER, b.name, b.module, inputs=values[1], outputs=values[1])
        stretch = self._flow.stretch_before(a, b) if results > self._flow.rounding(a, b) else None
        if stretch is None:
            return Judged(self._judge(a, b, inputs, results), inputs, results)
        self.different += 1
        self.origins.append(stretch)
        return Judged(VICTIM, inputs, results)

    def _drop_corrected(self) -> None:
        """Drop differences that the program corrects.

        It may divide the loss by the number of micro-batches, or the accumulated gradients. And it may take another
        part of a batch, if what is computed from that is equal.
        """
        verdicts = ((i, judged.verdict) for (i, _), judged in zip(self.pairs, self.judged, strict=True))
        equal = {index for index, verdict in verdicts if verdict in (SAME, ROUNDING)}

        def is_corrected(origin: Difference) -> bool:
            if origin.others_a or origin.others_b or origin.a is None or origin.b is None:
                return False
            if origin.a.name == ACCUMULATED:
                return self._flow.is_scaled_later(origin.a, origin.b, summands=origin.a.module not in self._never_whole)
            is_other_part = origin.a.name == INPUT and math.isinf(origin.results)
            return is_other_part and all(
                self._is_equal_behind(run, each, equal) for run, each in enumerate((origin.a, origin.b))
            )

        self.origins = [each for each in self.origins if not is_corrected(each)]

    def _is_equal_behind(self, run: int, begin: Operation, equal: set[int]) -> bool:
        """Whether all operations that both runs have, and that compute with a value of one run, are among `equal`.

        Operations that this run alone has may be between.
        """
        step, unpaired = (self.a, self.b)[run], self._flow.unpaired[run]
        partner = {pair[run]: pair[0] for pair in self.pairs}
        values = set(begin.outputs)
        for index, operation in enumerate(step.operations):
            if not values.intersection(operation.inputs):
                continue
            if index in unpaired:
                values.update(operation.outputs)
            elif operation.outputs and partner[index] not in equal:
                return False
        return True

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
        return self.judged[position].results <= self._flow.rounding(self.a.operations[i], self.b.operations[j])

    def _names_of_lacking(self, phase: str) -> set[str]:
        """The names in the first run of variables that have a value of this phase in one run only."""
        names: set[str] = set()
        for run, operations in enumerate((self.a.operations, self.b.operations)):
            lacking = [
                operations[index].module for index in self._flow.unpaired[run] if operations[index].phase == phase
            ]
            names.update(lacking if run == 0 else map(self._rename, lacking))
        return names

    def _add_lacking(self) -> None:
        """Add the gradients and updates that only one run has. The values that they would have got are equal."""
        for run, operations in enumerate((self.a.operations, self.b.operations)):
            for index in sorted(self._flow.unpaired[run]):
                operation = operations[index]
                if operation.phase in (GRADIENT, UPDATE):
                    a, b = (operation, None) if run == 0 else (None, operation)
                    self.origins.append(Difference(self.step, CODE, 0.0, math.inf, a, b))

    def _judge(self, a: Operation, b: Operation, inputs: float, results: float) -> str:
        if results == 0.0:
            self.same += 1
            return SAME
        allowed = self._flow.rounding(a, b)
        amplifies = UPDATE_AMPLIFIES if a.phase == UPDATE else 1.0 if a.phase == BEFORE else AMPLIFIES
        explained = a.name == SUM or results <= allowed + amplifies * inputs or amplifies * inputs >= 1.0
        if explained and results <= max(allowed, ROUNDED):
            self.rounding += 1
            return ROUNDING
        self.different += 1
        is_variable = a.phase in (BEFORE, GRADIENT) or a.name == ACCUMULATED
        kind = _kind(a, b) if math.isfinite(results) or is_variable else CODE
        difference = Difference(self.step, kind, inputs, results, a, b, self._flow.farthest(a, b))
        stretch = self._flow.stretch_before(a, b) if explained else None
        if stretch is not None:
            self.origins.append(stretch)
        elif explained and len(self.origins) < MOST_SEARCHED and self._flow.takes_another_value(a, b):
            difference = replace(difference, kind=CODE)
            self._rewired.add(id(a))
            explained = False
        (self.victims if explained else self.origins).append(difference)
        return VICTIM if explained else ORIGIN


def _kind(a: Operation, b: Operation) -> str:
    if a.phase == BEFORE:
        return DATA if a.name == INPUT else INITIALISATION
    if a.random or b.random:
        return RANDOM
    if a.settings != b.settings:
        return CODE
    return GRADIENTS if a.phase == GRADIENT or a.name == ACCUMULATED else NUMBERS
