"""Compares gradients with the derivative of a recorded computation.

Note [Two derivatives]
The tape is executed in double precision with gradients recorded. That gives the derivative in each parameter. It
contains no custom backward, nothing that was overwritten, and no recomputation, so it *proposes* where a gradient is
wrong. Finite differences *decide*: along the difference of the two, the loss has to change as the derivative says, and
not as the gradient says. Without a difference, finite differences along the gradient confirm both.

Note [Tolerance]
The gradient was computed in the precision of the program. How much rounding disturbs it is measured, parameter by
parameter: the derivative of the tape in the program's own precision is compared with the one in double precision. At a
kink, such as a ReLU at zero, rounding may choose another side. Then these two differ as much, and nothing is wrong.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from traincheck.sources.verification.tape.tape import Computation, Execution

Direction = Sequence[tuple[torch.Tensor, torch.Tensor]]
"""Leaves, with the change of each."""

SMALL = 1e-3
"""Relative differences that are never reported. Gradients in float32 are far more exact, those of a custom function may
use an approximation on purpose."""

NEGLIGIBLE = 1e-5
"""The share of the whole gradient below which the gradient of a parameter is not judged."""

ROUNDING = 10
"""How many times the measured rounding a difference has to be. It is measured once, and not known in distribution."""

EXACT, NARROWER = 0.05, 64
"""The relative error of a finite difference from which one with a width that is so many times narrower follows."""

CLEAR = 0.2
"""The part of a difference within which a finite difference has to be, in order to decide."""


MANY = 10
"""The relative difference from which it is said in multiples, not in percent."""


class CannotDecide(Exception):
    """The experiment has no result. The text is the reason."""


class Unexplained(CannotDecide):
    """The loss changes in another way than gradient and derivative say, which are the same."""


class NotFinite(CannotDecide):
    """A gradient is not finite. Loss scaling begins with such steps."""


@dataclass
class Difference:
    """How the gradients differ from the derivatives: the leaves, the worst first, and the two by leaf."""

    leaves: list[torch.Tensor]
    gradients: Mapping[int, torch.Tensor]
    derivatives: Mapping[int, torch.Tensor]

    def describe(self, name: str) -> str:
        """Say how the gradient of the worst leaf differs."""
        gradient, derivative = (values[id(self.leaves[0])] for values in (self.gradients, self.derivatives))
        size, own = float(derivative.norm()), float(gradient.norm())
        if not own:
            return f"{name} gets no gradient, but the loss depends on it"
        if not size:
            return f"{name} gets a gradient, but the loss does not depend on it"
        along = float((gradient * derivative).sum())
        factor = f"{along / size**2:.3g}"
        if along / (size * own) > 0.99 and factor != "1":  # nearly the same direction
            return f"the gradient of {name} is {factor} times the derivative"
        difference = float((gradient - derivative).norm()) / size
        digits = 0 if difference > 0.05 else 1
        text = f"{difference:.{digits}%}" if difference < MANY else f"{difference:,.0f} times its size"
        return f"the gradient of {name} differs from the derivative by {text}"


@dataclass
class Objective:
    """The sum over `weights` times the roots of a computation: the loss, whose gradients a backward computes."""

    computation: Computation
    weights: Sequence[torch.Tensor | None]
    own_type: set[str] = field(default_factory=set)

    def __call__(
        self, shifts: Direction, dtype: torch.dtype | None = torch.float64, *, differentiable: bool = False
    ) -> torch.Tensor:
        """Return the objective with the leaves shifted."""
        execution = self.computation.execute((), dtype, shifts=shifts, differentiable=differentiable)
        self.own_type |= execution.own_type
        with torch.set_grad_enabled(differentiable):
            return self._sum(execution)

    def _sum(self, execution: Execution) -> torch.Tensor:
        terms = [
            (root if weight is None else root * weight.to(root.dtype)).sum()
            for root, weight in zip(execution.roots, self.weights, strict=True)
        ]
        return torch.stack([term.to(torch.float64) for term in terms]).sum()

    def derivatives(self, dtype: torch.dtype | None = torch.float64) -> dict[int, torch.Tensor]:
        """Return the derivative in each leaf, as autograd computes it from the operations on the tape."""
        leaves = self.computation.leaves
        shifts = [(leaf, torch.zeros_like(leaf, dtype=dtype or leaf.dtype).requires_grad_()) for leaf in leaves]
        value = self(shifts, dtype, differentiable=True)
        if not value.requires_grad:
            return {id(leaf): torch.zeros_like(leaf, dtype=torch.float64) for leaf in leaves}
        try:
            grads = torch.autograd.grad(value, [shift for _, shift in shifts], allow_unused=True)
        except (RuntimeError, NotImplementedError) as error:
            raise CannotDecide(f"torch has no derivative of it: {error}") from error
        return {
            id(leaf): torch.zeros_like(leaf, dtype=torch.float64) if grad is None else grad.to_dense().double()
            for (leaf, _), grad in zip(shifts, grads, strict=True)
        }

    def derivatives_in(self, values: Sequence[int]) -> dict[int, torch.Tensor]:
        """Return the derivative in each of these results, by number."""
        leaves = self.computation.leaves
        shifts = [(leaf, torch.zeros_like(leaf, dtype=torch.float64).requires_grad_()) for leaf in leaves]
        execution = self.computation.execute((), torch.float64, shifts=shifts, keep=values, differentiable=True)
        results = [execution.values[value] for value in values]
        with torch.enable_grad():
            value = self._sum(execution)
        grads = torch.autograd.grad(value, results, allow_unused=True) if results else ()
        return {
            number: torch.zeros_like(result) if grad is None else grad
            for number, result, grad in zip(values, results, grads, strict=True)
        }

    def slope(self, direction: Direction, expected: float | None = None) -> Slope:
        """Return the change of the objective along a direction, by finite differences.

        Two evaluations are enough if they show the `expected` change. Others measure the error. Where it is large, the
        loss may jump nearby (the slope of a ReLU in a gradient penalty does), so a narrower difference follows.
        """
        norm = math.sqrt(sum(float(change.square().sum()) for _, change in direction))
        size = math.sqrt(sum(float(leaf.detach().double().square().sum()) for leaf, _ in direction))
        epsilon = torch.finfo(torch.float32).eps if self.own_type else torch.finfo(torch.float64).eps
        width = epsilon ** (1 / 3) * max(size, 1e-3) / norm
        slope = self._slope_within(direction, width, epsilon, expected)
        if slope.error > EXACT * abs(slope.value):
            narrower = self._slope_within(direction, width / NARROWER, epsilon, expected)
            slope = narrower if narrower.error < slope.error else slope
        return slope

    def _slope_within(self, direction: Direction, width: float, epsilon: float, expected: float | None) -> Slope:
        def at(step: float) -> float:
            return float(self([(leaf, change * step) for leaf, change in direction]))

        after, before = at(width), at(-width)
        wide = (after - before) / (2 * width)
        rounding = 4 * epsilon * (abs(after) + abs(before)) / width
        if expected is not None and abs(wide - expected) <= SMALL * abs(expected):
            return Slope(wide, rounding, 0.0)
        middle, half_after, half_before = at(0), at(width / 2), at(-width / 2)
        narrow = (half_after - half_before) / width
        # A smooth function has half the difference of its two slopes at half the width.
        gap = abs(half_after - 2 * middle + half_before) / (width / 2)
        wide_gap = abs(after - 2 * middle + before) / width
        is_kink = gap > 0.75 * wide_gap and gap > 4 * rounding
        return Slope(narrow, abs(wide - narrow) + rounding, gap if is_kink else 0.0)


@dataclass(frozen=True)
class Slope:
    """A directional derivative, its error, and how far the slopes on both sides differ at a kink (0 without one)."""

    value: float
    error: float
    kink: float


def difference(
    objective: Objective, losses: Sequence[torch.Tensor], gradients: Mapping[int, torch.Tensor | None]
) -> Difference | None:
    """Return how `gradients`, by the id of a leaf, differ from the derivatives; None if they are the same.

    `losses` are the values of the roots in the program. Raises CannotDecide and CannotExecute.
    """
    computation = objective.computation
    leaves = [leaf for leaf in computation.leaves if id(leaf) in gradients]
    if not leaves:
        raise CannotDecide("the gradients of all parameters pass hooks of the program")
    if any(leaf.is_complex() for leaf in leaves):
        raise CannotDecide("it has complex parameters")
    _check_repeats(computation, losses)
    exact = objective.derivatives()
    own = {
        id(leaf): torch.zeros_like(exact[id(leaf)]) if grad is None else grad.to_dense().double()
        for leaf in leaves
        for grad in (gradients[id(leaf)],)
    }
    if not all(bool(values.isfinite().all()) for values in (*own.values(), *exact.values())):
        raise NotFinite("a gradient is not finite")
    whole = math.sqrt(sum(float(exact[id(leaf)].square().sum()) for leaf in leaves))
    errors = {id(leaf): float((own[id(leaf)] - exact[id(leaf)]).norm()) for leaf in leaves}
    least = {id(leaf): SMALL * float(exact[id(leaf)].norm()) + NEGLIGIBLE * whole for leaf in leaves}
    wrong = [leaf for leaf in leaves if errors[id(leaf)] > least[id(leaf)]]
    if wrong:
        rounded = objective.derivatives(None)
        noise = {id(leaf): float((rounded[id(leaf)] - exact[id(leaf)]).norm()) for leaf in wrong}
        wrong = [leaf for leaf in wrong if errors[id(leaf)] > ROUNDING * noise[id(leaf)] + least[id(leaf)]]
    if not wrong:
        _confirm(objective, leaves, own, exact)
        return None
    wrong.sort(key=lambda leaf: -errors[id(leaf)])
    _decide(objective, wrong, own, exact)
    return Difference(wrong, own, exact)


def _check_repeats(computation: Computation, losses: Sequence[torch.Tensor]) -> None:
    for root, loss in zip(computation.execute().roots, losses, strict=True):
        margin = 64 * torch.finfo(loss.dtype).eps if loss.is_floating_point() else 0
        if not torch.allclose(root, loss.detach(), rtol=margin, atol=0, equal_nan=True):
            raise CannotDecide("the loss is another one when it is computed again")


def _confirm(
    objective: Objective,
    leaves: Sequence[torch.Tensor],
    gradients: Mapping[int, torch.Tensor],
    derivatives: Mapping[int, torch.Tensor],
) -> None:
    """Raise Unexplained if the loss does not change as gradient and derivative say. Both are formulas of torch, or both
    have the backward of a kernel."""
    direction = [(leaf, gradients[id(leaf)]) for leaf in leaves]
    expected = sum(float((derivatives[id(leaf)] * change).sum()) for leaf, change in direction)
    if not expected:
        return
    slope = objective.slope(direction, expected)
    margin = slope.error + slope.kink + SMALL * 10 * abs(expected)
    if abs(slope.value - expected) > margin:
        raise Unexplained("the loss does not change as the derivative of torch's operations says")


def _decide(
    objective: Objective,
    wrong: Sequence[torch.Tensor],
    gradients: Mapping[int, torch.Tensor],
    derivatives: Mapping[int, torch.Tensor],
) -> None:
    """Raise CannotDecide unless the loss changes as the derivative says, and not as the gradient says."""
    direction = [(leaf, gradients[id(leaf)] - derivatives[id(leaf)]) for leaf in wrong]
    expected = sum(float((derivatives[id(leaf)] * change).sum()) for leaf, change in direction)
    distance = sum(float(change.square().sum()) for _, change in direction)
    slope = objective.slope(direction)
    if slope.kink > CLEAR * distance:
        raise CannotDecide("the loss has a kink at the current parameters")
    if slope.error > CLEAR * distance:
        raise CannotDecide("finite differences of the loss are too inexact")
    if abs(slope.value - expected) > CLEAR * distance:
        raise CannotDecide("finite differences of the loss differ from the derivative of torch's operations")
