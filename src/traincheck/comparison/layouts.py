"""Brings one step of two runs into one layout, so that their values can be compared.

Note [Layouts]
The parameters of one run may lie in memory in another order than those of the other (transposed, as in GPT-2). They are
found where a step begins: sum and norm are equal, and the projections are not. From then on, their sums and norms are
compared alone. Where several parameters are one in the other run (see `Fusion`), the several become the shards of one.

A run may compute a batch in several micro-batches, each with a backward. Where the other run has another number of
backwards, the micro-batches are joined like ranks: a value is whole in each, a shard, or a summand.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from traincheck.comparison.alignment import Rename, is_of_variable, unchanged
from traincheck.comparison.distance import distance, rounding
from traincheck.comparison.given_names import Fusion, GivenName
from traincheck.comparison.ranks import concatenated, joined
from traincheck.comparison.renaming import renaming
from traincheck.comparison.sums import sums_of
from traincheck.vocab.operations import (
    ACCUMULATED,
    AFTER,
    BACKWARD,
    BEFORE,
    FORWARD,
    INPUT,
    ROOTS,
    Operation,
    Sketch,
    StepOperations,
)

# -- ranks and micro-batches -------------------------------------------------------------------------------------------


def joined_alike(a: Sequence[StepOperations], b: Sequence[StepOperations]) -> tuple[StepOperations, StepOperations]:
    """A step of several ranks of each run as one, with as many micro-batches in both."""
    counts = [max(map(_backwards, steps)) for steps in (a, b)]
    joins = counts[0] != counts[1] and min(counts) > 0
    own, other = (
        _joined(steps, micro_batches=joins and number > 1) for steps, number in zip((a, b), counts, strict=True)
    )
    return own, other


def _joined(steps: Sequence[StepOperations], micro_batches: bool) -> StepOperations:
    if not micro_batches:
        return joined(steps) if len(steps) > 1 else steps[0]
    parts = [part for step in steps for part in _micro_batches(step)]
    return joined(parts)


def _backwards(step: StepOperations) -> int:
    return sum(operation.name == ROOTS and operation.phase == BACKWARD for operation in step.operations)


def _micro_batches(step: StepOperations) -> list[StepOperations]:
    """The parts of a step up to the end of each backward. Each has the operations behind the last as well.

    The gradient after the last backward is that of all micro-batches, so it is the only one that counts.
    """
    parts: list[list[Operation]] = [[]]
    left = _backwards(step)
    is_behind = False  # behind a backward: the next operation of a forward belongs to the next micro-batch
    rest: list[Operation] = []
    for operation in step.operations:
        if is_behind and operation.phase in (FORWARD, BEFORE) and left:
            parts.append([])
            is_behind = False
        if not left and ((is_behind and operation.phase != BACKWARD) or rest):
            rest.append(operation)
        elif operation.name == ACCUMULATED and operation.phase == BACKWARD:
            is_behind = True
            if not left:
                rest.append(operation)
        else:
            parts[-1].append(operation)
        if operation.name == ROOTS and operation.phase == BACKWARD:
            left -= 1
    return [StepOperations(step.step, step.values, (*part, *rest), step.incomplete) for part in parts]


# -- parameters --------------------------------------------------------------------------------------------------------


class Layouts:
    """How names and parameters of two runs belong together, from the first step of both.

    Raises BadOption for `given` names that do not fit.
    """

    def __init__(self, a: StepOperations, b: StepOperations, given: Sequence[GivenName] = ()) -> None:
        self.renaming = renaming(a, b, given)
        a, b = self._with_fusions(a, b)
        self.permuted = frozenset(_permuted(a, b, self.renaming))
        """Names in the first run of parameters that lie in memory in another order."""

    @property
    def shown(self) -> dict[str, str]:
        """Names of the second run by those of the first, where they differ; permuted parameters as themselves."""
        return {**self.renaming.shown, **{name: f"{name} in another order" for name in sorted(self.permuted)}}

    def apply(self, a: StepOperations, b: StepOperations) -> tuple[StepOperations, StepOperations]:
        """A step of both runs with parameters in one layout."""
        a, b = self._with_fusions(a, b)
        if not self.permuted:
            return a, b
        return _without_order(a, self.permuted, unchanged), _without_order(b, self.permuted, self.renaming)

    def _with_fusions(self, a: StepOperations, b: StepOperations) -> tuple[StepOperations, StepOperations]:
        for fusion in self.renaming.all_fusions:
            if fusion.in_b:
                b = _fused(b, fusion)
            else:
                a = _fused(a, fusion)
        return a, b


def _fused(step: StepOperations, fusion: Fusion) -> StepOperations:
    """The step with one variable in place of several: its values are behind those of the last of them."""
    values = list(step.values)
    waiting: dict[tuple[str, str], dict[str, int]] = {}
    operations: list[Operation] = []
    for operation in step.operations:
        if operation.module not in fusion.parts or not is_of_variable(operation):
            operations.append(operation)
            continue
        held = waiting.setdefault((operation.phase, operation.name), {})
        held[operation.module] = (operation.outputs or operation.inputs)[0]
        if len(held) == len(fusion.parts):
            values.append(concatenated([values[held[name]] for name in fusion.parts]))
            operations.append(
                Operation(operation.phase, operation.name, fusion.name, "", operation.settings, (), (len(values) - 1,))
            )
            held.clear()
    return StepOperations(step.step, tuple(values), tuple(operations), step.incomplete)


def _permuted(a: StepOperations, b: StepOperations, rename: Rename) -> Iterator[str]:
    """The parameters of the first run whose elements lie in another order in the second."""
    others = {rename(name): sketch for name, sketch in _begun(b)}
    for name, own in _begun(a):
        other = others.get(name)
        if other is None or not own.packed_projections or not other.packed_projections:
            continue
        same_sums = sums_of(own).is_near(sums_of(other))
        if same_sums and (own.shape != other.shape or distance(own, other) > rounding([own, other], [])):
            yield name


def _begun(step: StepOperations) -> Iterator[tuple[str, Sketch]]:
    for operation in step.operations:
        if operation.phase == BEFORE and operation.name != INPUT:
            yield operation.module, step.values[operation.outputs[0]]


def _without_order(step: StepOperations, names: frozenset[str], rename: Rename) -> StepOperations:
    """The step with only the sums and norms of these variables, also where an operation changes them in place."""
    values = list(step.values)
    unordered: set[int] = set()
    for operation in step.operations:
        if is_of_variable(operation):
            if rename(operation.module) in names:
                unordered.update((*operation.outputs, *operation.inputs[: operation.phase == AFTER]))
        elif operation.name.endswith("_"):
            pairs = zip(operation.inputs, operation.outputs, strict=False)
            unordered.update(after for before, after in pairs if before in unordered)
    for number in unordered:
        values[number] = concatenated([values[number]])
    return StepOperations(step.step, tuple(values), step.operations, step.incomplete)
