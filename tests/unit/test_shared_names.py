"""Of programs that share no modules, what has the same name is compared, and batches of the same form."""

from __future__ import annotations

import pytest

from traincheck.comparison.difference import DATA, DIFFERENT, GRADIENTS
from traincheck.comparison.marks import MarkComparison
from traincheck.comparison.run_comparison import Comparison, compare_steps
from traincheck.errors import NothingToCompare
from traincheck.vocab.operations import (
    BEFORE,
    FORWARD,
    GRADIENT,
    INPUT,
    UPDATE,
    Operation,
    Sketch,
    StepOperations,
    packed,
)


def sketch(value: float, size: int = 4) -> Sketch:
    numbers = packed([value * 2] * 8)
    return Sketch("float32", (size,), hash(value), value * size, abs(value) * size**0.5, numbers, packed([value] * 3))


def step(
    model: str, *, batch: float = 1.0, mask: int = 0, gradient: float = 2.0, layer: str = "first", scale: float = 1.0
) -> StepOperations:
    """A step of a model whose forward has an operation in `layer`, and whose parameter has a name of the optimizer."""
    inputs = [Operation(BEFORE, INPUT, "input 1", settings="float32", outputs=(0,))]
    values = [sketch(batch), sketch(3.0 * scale), sketch(gradient), sketch(4.0)]
    if mask:
        values.append(sketch(1.0, mask))
        inputs.insert(0, Operation(BEFORE, INPUT, "input 2", settings="float32", outputs=(4,)))
    return StepOperations(
        1,
        tuple(values),
        (
            *inputs,
            Operation(FORWARD, "mm", f"{model}.{layer}", inputs=(0,), outputs=(1,)),
            Operation(GRADIENT, "gradient", "SGD.param_groups[0][0]", outputs=(2,)),
            Operation(GRADIENT, "gradient", f"{model}.{layer}.weight", outputs=(2,)),
            Operation(UPDATE, "SGD.step", f"{model}.{layer}.weight", outputs=(3,)),
        ),
    )


def compared(a: StepOperations, b: StepOperations) -> Comparison:
    return compare_steps([(a,)], [(b,)], marks=MarkComparison(same=1))


def test_operations_of_different_modules_are_not_compared() -> None:
    comparison = compared(step("GPT"), step("Port", layer="dense", scale=2.0))
    assert comparison.result != DIFFERENT and comparison.steps[0].same == 2  # the batch and the gradient
    assert compare_steps([(step("GPT"),)], [(step("Port", layer="dense"),)]).result == DIFFERENT, "without marks"


def test_an_outermost_module_of_the_same_name_is_not_enough() -> None:
    assert compared(step("Net"), step("Net", layer="dense", scale=2.0)).result != DIFFERENT


def test_programs_with_a_common_module_are_compared_whole() -> None:
    assert compared(step("Net"), step("Other", scale=2.0)).result == DIFFERENT
    assert compared(step("Net"), step("Other")).steps[0].same == 5


def test_gradients_of_the_same_name_are_compared() -> None:
    comparison = compared(step("GPT"), step("Port", layer="dense", gradient=5.0))
    assert [(each.kind, each.operation.module) for each in comparison.origins] == [
        (GRADIENTS, "SGD.param_groups[0][0]")
    ]


def test_batches_are_compared_if_both_programs_take_the_same_inputs() -> None:
    other = step("Port", layer="dense", batch=7.0)
    assert {each.kind for each in compared(step("GPT"), other).origins} == {DATA}
    assert compared(step("GPT"), step("Port", layer="dense", batch=7.0, mask=9)).result != DIFFERENT


def test_marks_need_no_common_step() -> None:
    later = StepOperations(2, (), ())
    assert compared(step("GPT"), later).steps == ()
    with pytest.raises(NothingToCompare):
        compare_steps([(step("GPT"),)], [(later,)])
