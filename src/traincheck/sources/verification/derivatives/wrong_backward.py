"""Finds the custom function, or the smallest module, whose backward returns another gradient than its forward implies.

Note [Derivatives that are chosen]
A straight-through estimator rounds in its forward and passes the gradient on. A gradient reversal passes its input on
and negates the gradient. Such a backward is no error: its author replaces a derivative that is useless for training.
Each element of the result then depends on the same element of the input, with a factor that is zero or one constant. A
function is not blamed for the gradient of such an input, and then not for the gradients of other inputs either (the
scale of a quantizer).

A backward that differentiates something else than its forward computed approximates the derivative: the adjoint of a
differential equation, or the fixed point of an iteration. Such a backward builds a graph of its own. It is not blamed
for a small difference.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from typing import NamedTuple

import torch
from torch import nn

from traincheck.sources.verification.derivatives.derivative_check import NEGLIGIBLE, ROUNDING, SMALL, Objective
from traincheck.sources.verification.tape.tape import CannotExecute, Computation, CustomFunction, ModuleCall, Ref

NEAR = 0.1
"""The relative difference from which a backward that approximates is blamed."""


class Backward(Enum):
    """What is known of the backward of a custom function."""

    RIGHT = "right"
    WRONG = "wrong"
    CHOSEN = "chosen"
    APPROXIMATE = "approximate"
    UNKNOWN = "unknown"


def functions_of(computation: Computation) -> list[CustomFunction]:
    """Return the calls of custom functions in a computation, the last first."""
    functions = {id(entry.function): entry.function for entry in computation.entries if entry.function is not None}
    return list(functions.values())[::-1]


class _Product(NamedTuple):
    """The gradient of one input, and how much rounding disturbs it."""

    value: torch.Tensor
    noise: float


def judge_backward(computation: Computation, function: CustomFunction) -> Backward:
    """Compare the gradients that a backward returned with the products of the gradients it got and its derivatives."""
    if function.gradients is None or not function.outputs:
        return Backward.UNKNOWN
    got, returned = function.gradients
    if len(returned) != len(function.inputs) or not all(
        source is None or isinstance(source, Ref) for source in function.inputs
    ):
        return Backward.UNKNOWN
    try:
        products = _products(computation, function, got)
        wrong = [index for index, product in products.items() if _is_wrong(product, returned[index])]
        if not wrong:
            return Backward.RIGHT
        if any(_is_chosen(computation, function, index) for index in wrong):
            return Backward.CHOSEN
    except (CannotExecute, RuntimeError):
        return Backward.UNKNOWN
    if function.differentiates and _is_near(products, returned):
        return Backward.APPROXIMATE
    return Backward.WRONG


def _is_wrong(product: _Product, returned: torch.Tensor | None) -> bool:
    exact, own = product.value, _like(product.value, returned)
    size = float(exact.norm())
    return float((own - exact).norm()) > SMALL * max(size, float(own.norm())) + ROUNDING * product.noise


def _like(exact: torch.Tensor, returned: torch.Tensor | None) -> torch.Tensor:
    """A gradient that a backward returned in the form of the derivative."""
    if returned is None:
        return torch.zeros_like(exact)
    own = returned.detach().double()
    return own if own.shape == exact.shape else own.sum_to_size(exact.shape)  # as autograd does


def _is_near(products: Mapping[int, _Product], returned: Sequence[torch.Tensor | None]) -> bool:
    """Whether the gradients of all inputs together differ little from the derivatives."""
    pairs = [(product.value, _like(product.value, returned[index])) for index, product in products.items()]
    difference = sum(float((own - exact).square().sum()) for exact, own in pairs)
    return difference <= NEAR**2 * sum(float(exact.square().sum()) for exact, _ in pairs)


def input_numbers(function: CustomFunction) -> dict[int, int]:
    """The numbers of the values of the inputs that require a gradient, by the position of the input."""
    return {index: source.value for index, source in enumerate(function.inputs) if isinstance(source, Ref)}


def values_before(
    computation: Computation, part: Computation, function: CustomFunction, dtype: torch.dtype | None
) -> dict[int, torch.Tensor]:
    """The values that a call of a custom function takes, by number."""
    needed = part.free | set(input_numbers(function).values())
    values = computation.execute((), dtype, keep=needed).values
    return {value: values[value].detach() for value in needed if value in values}


def _products(
    computation: Computation, function: CustomFunction, got: Sequence[torch.Tensor | None]
) -> dict[int, _Product]:
    exact, rounded = (_products_in(computation, function, got, dtype) for dtype in (torch.float64, None))
    return {index: _Product(exact[index], float((rounded[index] - exact[index]).norm())) for index in exact}


def _products_in(
    computation: Computation,
    function: CustomFunction,
    got: Sequence[torch.Tensor | None],
    dtype: torch.dtype | None,
) -> dict[int, torch.Tensor]:
    part = computation.part(function)
    values = values_before(computation, part, function, dtype)
    inputs = {index: value for index, value in input_numbers(function).items() if value in values}
    for value in inputs.values():
        values[value] = values[value].clone().requires_grad_()
    execution = part.execute((), dtype, values=values, differentiable=True)
    pairs = [
        (root, grad.to(root.dtype))
        for root, index in zip(execution.roots, function.outputs, strict=True)
        if root.requires_grad and index < len(got) and (grad := got[index]) is not None
    ]
    zeros = {index: torch.zeros_like(values[value], dtype=torch.float64) for index, value in inputs.items()}
    if not pairs:
        return zeros
    grads = torch.autograd.grad(
        [root for root, _ in pairs],
        [values[value] for value in inputs.values()],
        [grad for _, grad in pairs],
        allow_unused=True,
    )
    return {index: zeros[index] if grad is None else grad.double() for index, grad in zip(inputs, grads, strict=True)}


_TYPICAL = 0.99
"""The share of elements that have to have the same factor: others may be at a jump."""


def _is_chosen(computation: Computation, function: CustomFunction, index: int) -> bool:
    """Whether the derivative in an input is useless for training, see Note [Derivatives that are chosen]."""
    part = computation.part(function)
    values = values_before(computation, part, function, torch.float64)
    number = input_numbers(function)[index]

    def results(value: torch.Tensor) -> Sequence[torch.Tensor]:
        return part.execute((), torch.float64, values={**values, number: value}).roots

    return is_useless(results, values[number], 1e-6)


def is_useless(results: Callable[[torch.Tensor], Sequence[torch.Tensor]], value: torch.Tensor, width: float) -> bool:
    """Whether each result depends on the same element of the input, with a factor that is zero or one constant.

    `width` is the change of the input, in parts of its size.
    """
    generator = torch.Generator().manual_seed(0)
    change = torch.rand(value.shape, generator=generator, dtype=torch.float64).add_(0.5)
    change = (change * width * max(float(value.abs().mean()), 1e-3)).to(value.device, value.dtype)
    after, before = value + change, value - change
    change = (after.double() - before.double()).reshape(-1)
    for above, below in zip(results(after), results(before), strict=True):
        slope = (above.double() - below.double()).reshape(-1)
        if not bool(slope.any()):
            continue
        if slope.numel() != change.numel():
            return False
        factors = slope / change
        moved = factors[factors.abs() > SMALL * factors.abs().max()]
        usual = moved.median()
        same = (factors - usual).abs() <= SMALL * usual.abs()
        still = factors.abs() <= SMALL * usual.abs()
        if float((same | still).double().mean()) < _TYPICAL:
            return False
    return True


class Boundary(NamedTuple):
    """A result of a module call: its value, and the gradient that arrived at it."""

    call: ModuleCall
    value: int
    gradient: torch.Tensor


def wrong_call(objective: Objective, boundaries: Sequence[Boundary]) -> ModuleCall | None:
    """Return the smallest call around the operations whose backward is wrong: those that take the last result with a
    wrong gradient. Returns None if all gradients are right."""
    computation = objective.computation
    results = {value: index for index, entry in enumerate(computation.entries) for value in entry.results}
    written = {group for entry in computation.entries for group in entry.writes}
    usable = {
        boundary.value: boundary
        for boundary in boundaries
        if boundary.value in results and computation.group_of(boundary.value) not in written
    }
    expected = objective.derivatives_in(list(usable))
    size = max((float(grad.norm()) for grad in expected.values()), default=0.0)
    wrong = [
        boundary
        for value, boundary in usable.items()
        if float((boundary.gradient.double() - expected[value]).norm())
        > 10 * SMALL * float(expected[value].norm()) + NEGLIGIBLE * size
    ]
    if not wrong:
        return None
    last = max(wrong, key=lambda boundary: results[boundary.value])
    readers = [entry.call for entry in computation.entries if last.value in entry.reads]
    return common_call(call for call in readers if call is not None)


def common_call(calls: Iterable[ModuleCall]) -> ModuleCall | None:
    """Return the innermost call around all of these."""
    common: list[ModuleCall] | None = None
    for call in calls:
        chain = list(_around(call))[::-1]
        if common is None:
            common = chain
        else:
            shared = [ours for ours, theirs in zip(common, chain, strict=False) if ours is theirs]
            common = shared
    return common[-1] if common else None


def _around(call: ModuleCall | None) -> Iterable[ModuleCall]:
    while call is not None:
        yield call
        call = call.parent


def calls_of(computation: Computation, leaves: Iterable[torch.Tensor]) -> list[ModuleCall]:
    """Return the calls of modules that use one of these leaves."""
    numbers = computation.numbers_of(leaves)
    return [
        entry.call for entry in computation.entries if entry.call is not None and not numbers.isdisjoint(entry.reads)
    ]


def modules_of(computation: Computation) -> dict[int, nn.Module]:
    """Return the modules whose calls are part of a computation."""
    calls = (call for entry in computation.entries for call in _around(entry.call))
    return {id(module): module for call in calls if (module := call.module) is not None}
