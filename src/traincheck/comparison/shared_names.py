"""What two programs that share no modules have in common by name, next to their marks.

Their operations cannot be aligned. Parameters, gradients and updates with the same names are compared, and batches if
both programs take tensors of the same types and sizes in the same order.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from traincheck.comparison.alignment import Rename
from traincheck.vocab.operations import ACCUMULATED, AFTER, BEFORE, GRADIENT, INPUT, UPDATE, Operation, StepOperations

Steps = Sequence[tuple[StepOperations, StepOperations]]
"""The steps that two runs have in common."""


def share_modules(steps: Steps, rename: Rename) -> bool:
    """Whether the runs call some modules of the same names; `rename` gives the second run's names those of the first.

    An outermost module alone is not enough, as two programs may both have a `Net`.
    """
    own = _modules((step for step, _ in steps), _same)
    other = _modules((step for _, step in steps), rename)
    return own == other or any("." in name for name in own & other)


def with_equal_names(steps: Steps, rename: Rename) -> Steps:
    """The steps with what is equal by name. Steps without any are left out."""
    common = [_common(own, other, rename) for own, other in steps]
    return [(own, other) for own, other in common if own.operations and other.operations]


def _same(name: str) -> str:
    return name


def _modules(steps: Iterable[StepOperations], rename: Rename) -> set[str]:
    """The names of modules that computed something."""
    modules = {operation.module for step in steps for operation in step.operations if not _is_named(operation)}
    return {rename(name) for name in modules if name}


def _is_named(operation: Operation) -> bool:
    """Whether an operation is a value of a variable or a batch, not a computation of a module."""
    return operation.phase in (BEFORE, GRADIENT, UPDATE, AFTER) or operation.name == ACCUMULATED


def _common(a: StepOperations, b: StepOperations, rename: Rename) -> tuple[StepOperations, StepOperations]:
    names = _names(a, _same) & _names(b, rename)
    same_inputs = _inputs(a) == _inputs(b)

    def kept(step: StepOperations, rename: Rename) -> StepOperations:
        operations = tuple(
            operation
            for operation in step.operations
            if (same_inputs if operation.name == INPUT else _name(operation, rename) in names)
        )
        return msgspec.structs.replace(step, operations=operations)

    return kept(a, _same), kept(b, rename)


def _names(step: StepOperations, rename: Rename) -> set[tuple[str, str, str]]:
    return {_name(operation, rename) for operation in step.operations if _is_named(operation)}


def _name(operation: Operation, rename: Rename) -> tuple[str, str, str]:
    return operation.phase, operation.name, rename(operation.module)


def _inputs(step: StepOperations) -> list[tuple[str, int]]:
    """The types and sizes of the tensors that come from outside the recording."""
    values = (step.values[operation.outputs[0]] for operation in step.operations if operation.name == INPUT)
    return [(value.dtype, value.size) for value in values]
