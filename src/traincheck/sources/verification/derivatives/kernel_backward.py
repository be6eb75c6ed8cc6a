"""Judges the backward of a custom function whose forward runs kernels, by finite differences of that forward.

Note [Finite differences of a kernel]
A kernel computes in the precision of the program, so a finite difference of it is inexact. For each input, the function
is evaluated along the gradient that its backward returned, and along directions at random. A direction speaks against
the backward if differences of two widths agree with each other, rounding does not explain them, and they clearly differ
from what the gradient says. Two directions have to. A function with jumps, as a kernel of a low precision has, gives
differences that do not agree.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from traincheck.sources.verification.derivatives.derivative_check import CLEAR
from traincheck.sources.verification.derivatives.wrong_backward import (
    Backward,
    input_numbers,
    is_useless,
    values_before,
)
from traincheck.sources.verification.tape.repeated_calls import RepeatedCall
from traincheck.sources.verification.tape.tape import CannotExecute, Computation, CustomFunction

DIRECTIONS = 3
"""Directions at random."""

ENOUGH = 2
"""Directions that have to speak against a gradient."""

ROUNDED = 16
"""How many times larger the error of a sum may be than that of results which are rounded independently."""


def kernels_of(computation: Computation) -> list[CustomFunction]:
    """The functions with kernels in a computation, the last first: of the calls of one line with equal plain arguments,
    one."""
    calls = {
        (entry.op.cls, entry.function.site, repr(entry.op.plain)): entry.function
        for entry in computation.entries
        if isinstance(entry.op, RepeatedCall) and entry.function is not None
    }
    return list(calls.values())[::-1]


def judge_kernel(computation: Computation, function: CustomFunction) -> Backward:
    """Compare the gradients that a backward returned with the changes of what its forward computes."""
    if function.gradients is None or len(function.gradients[1]) != len(function.inputs):
        return Backward.UNKNOWN
    got, returned = function.gradients
    try:
        for index, number in input_numbers(function).items():
            forward = _Forward(computation, function, number, got)
            value, gradient = forward.value, returned[index]
            if not value.is_floating_point() or (gradient is not None and gradient.shape != value.shape):
                continue
            gradient = torch.zeros_like(value) if gradient is None else gradient.detach()
            against = sum(forward.speaks_against(gradient, change) for change in _directions(value, gradient))
            if against >= ENOUGH:
                is_chosen = is_useless(forward.results, value, forward.width)
                return Backward.CHOSEN if is_chosen else Backward.WRONG
    except (CannotExecute, RuntimeError):  # of torch, as all errors of the function are CannotExecute
        return Backward.UNKNOWN
    return Backward.RIGHT


def _directions(value: torch.Tensor, gradient: torch.Tensor) -> Iterator[torch.Tensor]:
    """Changes of an input, with elements of about one in square on average."""
    generator = torch.Generator().manual_seed(0)
    size = gradient.double().square().mean().sqrt()
    if bool(size.isfinite()) and float(size):
        yield gradient.double() / size
    for _ in range(DIRECTIONS):
        yield torch.randn(value.shape, generator=generator, dtype=torch.float64).to(value.device)


class _Forward:
    """The forward of a call as a function of one input, the others as they were. `got` weights its results."""

    def __init__(
        self, computation: Computation, function: CustomFunction, number: int, got: Sequence[torch.Tensor | None]
    ) -> None:
        self._part, self._number, self._got = computation.part(function), number, got
        self._outputs = list(function.outputs)
        self._values = values_before(computation, self._part, function, None)
        if number not in self._values:
            raise CannotExecute("a value that it uses is not available")
        self.value = self._values[number]
        self.width = torch.finfo(self.value.dtype).eps ** (1 / 3) if self.value.is_floating_point() else 0.0
        """The change of the input, in parts of its size, for which a difference is most exact."""

    def results(self, value: torch.Tensor) -> Sequence[torch.Tensor]:
        """The results for another value of the input."""
        return self._part.execute((), None, values={**self._values, self._number: value}).roots

    def _sum(self, value: torch.Tensor) -> tuple[float, float]:
        """The weighted sum of the results, and the error that rounding gives it."""
        total = error = 0.0
        for root, index in zip(self.results(value), self._outputs, strict=True):
            weight = self._got[index] if index < len(self._got) else None
            if weight is not None and root.is_floating_point():
                products = weight.double() * root.double()
                total += float(products.sum())
                error += ROUNDED * torch.finfo(root.dtype).eps * float(products.norm())
        return total, error

    def speaks_against(self, gradient: torch.Tensor, direction: torch.Tensor) -> bool:
        """Whether the results clearly do not change as the gradient says, see Note [Finite differences of a kernel]."""
        size = max(float(self.value.double().square().mean().sqrt()), 1e-3)
        excess = []
        for width in (self.width * size, self.width * size / 2):
            after, before = ((self.value + sign * width * direction).to(self.value.dtype) for sign in (1, -1))
            (high, error), (low, _) = self._sum(after), self._sum(before)
            change = high - low
            expected = float((gradient.double() * (after.double() - before.double())).sum())
            wrong = change - expected
            if not abs(wrong) > CLEAR * max(abs(change), abs(expected)) or not error < CLEAR * abs(wrong):
                return False
            excess.append(wrong / width)
        return abs(excess[0] - excess[1]) <= CLEAR * abs(excess[0])
