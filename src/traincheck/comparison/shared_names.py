"""What two programs that share no modules have in common by name, next to their marks.

Their operations cannot be aligned. Parameters, gradients and updates with the same names are compared, and batches if
both programs take tensors of the same types and sizes in the same order.
"""

from __future__ import annotations

import msgspec

from traincheck.comparison.alignment import Rename, is_of_variable, unchanged
from traincheck.vocab.operations import INPUT, Operation, StepOperations


def share_modules(a: StepOperations, b: StepOperations, rename: Rename) -> bool:
    """Whether the runs call some modules of the same names; `rename` gives the second run's names those of the first.

    An outermost module alone is not enough, as two programs may both have a `Net`.
    """
    own, other = _modules(a, unchanged), _modules(b, rename)
    return own == other or any("." in name for name in own & other)


def with_equal_names(a: StepOperations, b: StepOperations, rename: Rename) -> tuple[StepOperations, StepOperations]:
    """The steps with what is equal by name."""
    names = _names(a, unchanged) & _names(b, rename)
    same_inputs = _inputs(a) == _inputs(b)

    def kept(step: StepOperations, rename: Rename) -> StepOperations:
        operations = tuple(
            operation
            for operation in step.operations
            if (same_inputs if operation.name == INPUT else _name(operation, rename) in names)
        )
        return msgspec.structs.replace(step, operations=operations)

    return kept(a, unchanged), kept(b, rename)


def _modules(step: StepOperations, rename: Rename) -> set[str]:
    """The names of modules that computed something."""
    return {rename(each.module) for each in step.operations if each.module and not _has_name(each)}


def _has_name(operation: Operation) -> bool:
    return operation.name == INPUT or is_of_variable(operation)


def _names(step: StepOperations, rename: Rename) -> set[tuple[str, str, str]]:
    return {_name(operation, rename) for operation in step.operations if is_of_variable(operation)}


def _name(operation: Operation, rename: Rename) -> tuple[str, str, str]:
    return operation.phase, operation.name, rename(operation.module)


def _inputs(step: StepOperations) -> list[tuple[str, int]]:
    """The types and sizes of the tensors that come from outside the recording."""
    values = (step.values[operation.outputs[0]] for operation in step.operations if operation.name == INPUT)
    return [(value.dtype, value.size) for value in values]
