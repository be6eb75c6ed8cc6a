"""Brings one step of two runs into one layout, so that their values can be compared.

Note [Layouts]
The parameters of one run may lie in memory in another order than those of the other (transposed, as in GPT-2). They are
found where a step begins: sum and norm are equal, and the projections are not. From then on, their sums and norms are
compared alone. Where several parameters are one in the other run (see `Fusion`), the several become the shards of one.

A run may compute a batch in several micro-batches, each with a backward. Where the other run has another number of
backwards, or is a pipeline, the micro-batches are joined like ranks: a value is whole in each, a shard, or a summand.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from traincheck.comparison.alignment import Rename, is_of_variable, unchanged
from traincheck.comparison.distance import distance, rounding
from traincheck.comparison.given_names import Fusion, GivenName
from traincheck.comparison.ranks import concatenated, joined
from traincheck.comparison.renaming import renaming
from traincheck.comparison.stages import Stages, join_stages
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


def joined_alike(
    a: Sequence[StepOperations], b: Sequence[StepOperations], stages: tuple[Stages, Stages]
) -> tuple[StepOperations, StepOperations]:
    """A step of several ranks of each run as one, with as many micro-batches in both."""
    counts = [max(map(_backwards, steps)) for steps in (a, b)]
    joins = min(counts) > 0 and (counts[0] != counts[1] or any(len(groups) > 1 for groups in stages))
    own, other = (
        _joined(steps, groups, micro_batches=joins and (count > 1 or len(groups) > 1))
        for steps, groups, count in zip((a, b), stages, counts, strict=True)
    )
    return own, other


def _joined(steps: Sequence[StepOperations], stages: Stages, *, micro_batches: bool) -> StepOperations:
    joined_ranks = []
    for ranks in stages:
        parts = [steps[rank] for rank in ranks]
        if micro_batches:
            parts = [part for step in parts for part in _micro_batches(step)]
        joined_ranks.append(joined(parts) if len(parts) > 1 else parts[0])
    return join_stages(joined_ranks, [ranks[0] for ranks in stages]) if len(stages) > 1 else joined_ranks[0]


def _backwards(step: StepOperations) -> int:
    return sum(operation.name == ROOTS and operation.phase == BACKWARD for operation in step.operations)


def _micro_batches(step: StepOperations) -> list[StepOperations]:
    """The parts of a step that belong to each backward. Each has the operations behind the last as well.

    The gradient after the last backward is that of all micro-batches, so it is the only one that counts.
    """
    operations = step.operations
    roots = [
        index for index, operation in enumerate(operations) if operation.name == ROOTS and operation.phase == BACKWARD
    ]
    end = next(
        (
            index
            for index in range(roots[-1] + 1, len(operations))
            if operations[index].phase != BACKWARD or operations[index].name == ACCUMULATED
        ),
        len(operations),
    )
    parts: list[list[Operation]] = [[] for _ in roots]
    for index, owner in sorted(_owners(operations, roots, end).items()):
        if operations[index].name != ACCUMULATED:
            parts[owner].append(operations[index])
    return [StepOperations(step.step, step.values, (*part, *operations[end:]), step.incomplete) for part in parts]


def _owners(operations: Sequence[Operation], roots: Sequence[int], end: int) -> dict[int, int]:
    """The micro-batch of operations before `end`: whose loss is computed from them. A pipeline computes several
    forwards first.

    Where no loss is computed, but the state at the end of the step, it is the micro-batch of what follows. Other
    operations have none: metrics, and trials that find out shapes.
    """
    forward = [index for index in range(end) if operations[index].phase in (FORWARD, BEFORE)]
    producers = {value: index for index in forward for value in operations[index].outputs}

    def computes(index: int) -> Iterator[int]:
        """What computes the inputs of an operation, and has no owner yet."""
        waiting = list(operations[index].inputs)
        while waiting:
            producer = producers.get(waiting.pop())
            if producer is not None and producer not in owners:
                yield producer
                waiting += operations[producer].inputs

    owners: dict[int, int] = {}
    for number, root in enumerate(roots):
        following = roots[number + 1] if number + 1 < len(roots) else end
        owners.update((index, number) for index in range(root, following) if operations[index].phase == BACKWARD)
        for index in computes(root):
            owners[index] = number
    for last in range(end, len(operations)):
        for index in computes(last):
            owners[index] = next((number for number, root in enumerate(roots) if index < root), len(roots) - 1)
    return owners


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
