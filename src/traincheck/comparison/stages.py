"""Joins the stages of a pipeline: ranks that hold different layers of one model.

Note [Stages]
A rank is on a later stage than another if it receives what the other computed in its forward, and both hold different
parameters. Ranks at the same depth are one stage. The joined step has the forwards in the order of the stages, the
backwards in the reverse order, and what follows. A received activation is the value that was sent.

Stages may number their layers from 0 each. Then the names of a later stage get its first rank, as in
`Stage[rank 1].layers.0`.

A list operation behind the backward (the norms of all gradients) is one operation over the lists of all stages, and so
is what is computed from its result.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from traincheck.comparison.alignment import aligned, is_of_variable
from traincheck.comparison.ranks import PartsOfRanks, join
from traincheck.vocab.operations import BACKWARD, BEFORE, FORWARD, INPUT, ROOTS, Operation, Sketch, StepOperations

Stages = tuple[tuple[int, ...], ...]
"""The ranks of each stage, as positions."""

LISTS = ("_foreach_", "stack", "cat")
"""Begins of names of operations on the list of all gradients."""


def stages_of(ranks: Sequence[StepOperations]) -> Stages:
    """The stages of a run by a step of all its ranks: one stage if it is no pipeline."""
    computed = [_computed(step) for step in ranks]
    parameters = [_parameters(step) for step in ranks]
    depth: list[int] = []
    for rank, step in enumerate(ranks):
        received = _received(step)
        senders = (
            depth[sender] + 1
            for sender in range(rank)
            if received & computed[sender] and not _share(parameters[sender], parameters[rank])
        )
        depth.append(max(senders, default=0))
    return tuple(
        tuple(rank for rank, own in enumerate(depth) if own == stage) for stage in range(max(depth, default=0) + 1)
    )


def _forward(step: StepOperations) -> Iterator[Operation]:
    """The operations before the first backward."""
    for operation in step.operations:
        if operation.phase == BACKWARD:
            return
        yield operation


def _is_activation(sketch: Sketch) -> bool:
    return sketch.size > 1 and sketch.dtype.startswith(("float", "bfloat")) and sketch.fingerprint is not None


def _computed(step: StepOperations) -> set[int | None]:
    """The fingerprints of what a forward computed."""
    values = (
        step.values[value] for operation in _forward(step) if operation.phase == FORWARD for value in operation.outputs
    )
    return {sketch.fingerprint for sketch in values if _is_activation(sketch)}


def _received(step: StepOperations) -> set[int | None]:
    """The fingerprints of what a forward took from outside."""
    values = (step.values[operation.outputs[0]] for operation in _forward(step) if operation.name == INPUT)
    return {sketch.fingerprint for sketch in values if _is_activation(sketch)}


def _parameters(step: StepOperations) -> dict[str, int | None]:
    """The fingerprints of the variables with which a step begins."""
    begun = (operation for operation in step.operations if operation.phase == BEFORE and operation.name != INPUT)
    return {operation.module: step.values[operation.outputs[0]].fingerprint for operation in begun}


def _share(a: Mapping[str, int | None], b: Mapping[str, int | None]) -> bool:
    """Whether two ranks hold the same parameters, for the most part. Ranks without parameters are no stages."""
    fewest = min(len(a), len(b))
    return not fewest or 2 * sum(name in b and b[name] == own for name, own in a.items()) > fewest


def join_stages(stages: Sequence[StepOperations], first_ranks: Sequence[int]) -> StepOperations:
    """A step of several stages as one. `first_ranks` name the stages."""
    joined = _Joined()
    for step, rank in zip(stages, first_ranks, strict=True):
        joined.add(step, rank)
    incomplete = next((step.incomplete for step in stages if step.incomplete), "")
    return StepOperations(stages[0].step, tuple(joined.values), joined.operations(), incomplete)


class _Joined:
    """Collects the values and operations of stages."""

    def __init__(self) -> None:
        self.values: list[Sketch] = []
        self._heads: list[list[Operation]] = []
        self._backwards: list[list[Operation]] = []
        self._tail: list[Operation] = []
        self._sent: dict[tuple[int | None, ...], int] = {}
        self._names: dict[str, tuple[int | None, ...]] = {}  # of variables, with their values

    def add(self, step: StepOperations, rank: int) -> None:
        """Add a stage behind the others."""
        offset = len(self.values)
        self.values += step.values
        numbers = {number: number + offset for number in range(len(step.values))}
        used = {value for operation in step.operations for value in operation.inputs}
        kept: list[Operation] = []
        for operation in step.operations:
            value = operation.outputs[0] if operation.name == INPUT else None
            if value is not None and self._heads:
                sent = self._sent.get(_fingerprints(step.values[value])) if _is_activation(step.values[value]) else None
                if sent is not None:
                    numbers[value] = sent
                if sent is not None or value not in used:
                    continue
            kept.append(operation)
        suffix = rank if self._has_other_values(step) else None
        moved = [_moved(operation, numbers, suffix) for operation in kept]
        begin = next((index for index, operation in enumerate(moved) if operation.phase == BACKWARD), len(moved))
        end = max((index + 1 for index, operation in enumerate(moved) if operation.phase == BACKWARD), default=begin)
        for operation in moved[:begin]:
            if operation.phase == FORWARD:
                self._sent.update((_fingerprints(self.values[value]), value) for value in operation.outputs)
        self._heads.append(moved[:begin])
        self._backwards.append(moved[begin:end])
        self._tail = self._with_tail(moved[end:])

    def operations(self) -> tuple[Operation, ...]:
        """The operations of all stages. A backward begins with the loss, on the last stage."""
        last, *others = reversed(self._backwards)
        others = [[operation for operation in backward if operation.name != ROOTS] for backward in others]
        groups = (*self._heads, last, *others, self._tail)
        return tuple(operation for group in groups for operation in group)

    def _has_other_values(self, step: StepOperations) -> bool:
        """Whether variables of an earlier stage have the names of this one, and other values."""
        own = {
            operation.module: _fingerprints(step.values[operation.outputs[0]])
            for operation in step.operations
            if operation.phase == BEFORE and operation.name != INPUT
        }
        collides = any(name in self._names and self._names[name] != value for name, value in own.items())
        self._names.update(own if not collides else {})
        return collides

    def _with_tail(self, own: Sequence[Operation]) -> list[Operation]:
        """The operations behind the backwards, with those of another stage. Operations on lists become one."""
        partner = dict(aligned(self._tail, own))
        merged: set[int] = set()
        behind: dict[int, int] = {}  # values of the new stage by the joined value in their place
        taken: set[int] = set()
        tail: list[Operation] = []
        for index, operation in enumerate(self._tail):
            other = own[partner[index]] if index in partner else None
            is_list = operation.name.startswith(LISTS) or bool(merged.intersection(operation.inputs))
            if other is None or is_of_variable(operation) or operation.name == INPUT or not is_list:
                tail.append(operation)
                continue
            taken.add(partner[index])
            inputs = (*operation.inputs, *(value for value in other.inputs if value not in behind))
            outputs = (*operation.outputs, *other.outputs)
            if len(operation.outputs) == len(other.outputs) == 1:
                (value,), (its,) = operation.outputs, other.outputs
                self.values[value] = join([*_parts(self.values[value]), *_parts(self.values[its])])
                behind[its] = value
                outputs = operation.outputs
            merged.update(outputs)
            tail.append(msgspec.structs.replace(operation, inputs=inputs, outputs=outputs))
        rest = (operation for index, operation in enumerate(own) if index not in taken)
        return [*tail, *(_moved(operation, behind, None) for operation in rest)]


def _parts(sketch: Sketch) -> tuple[Sketch, ...]:
    """What ranks hold of a value. Behind the backwards, all micro-batches have the same."""
    return sketch.parts if isinstance(sketch, PartsOfRanks) and not sketch.is_replicated else (sketch,)


def _fingerprints(sketch: Sketch) -> tuple[int | None, ...]:
    """The fingerprints of the parts of a value, in whatever order."""
    parts = sketch.parts if isinstance(sketch, PartsOfRanks) else (sketch,)
    return tuple(sorted(part.fingerprint or 0 for part in parts))


def _moved(operation: Operation, numbers: Mapping[int, int], rank: int | None) -> Operation:
    """The operation with other numbers of values, and with the rank of its stage in its names."""
    module = operation.module
    if rank is not None and module and operation.name != INPUT:
        root, dot, rest = module.partition(".")
        module = f"{root}[rank {rank}]{dot}{rest}"
    return msgspec.structs.replace(
        operation,
        module=module,
        inputs=tuple(numbers.get(value, value) for value in operation.inputs),
        outputs=tuple(numbers.get(value, value) for value in operation.outputs),
    )
