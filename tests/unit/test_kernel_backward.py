"""Tests that the gradients of custom functions with kernels are verified: torch sees no operation in their forward."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import traincheck
from traincheck.trace.folder import RunFolder
from traincheck.vocab.facts import value_of
from traincheck.vocab.verification import AGREES, DERIVATIVE, DISAGREES, UNDECIDED

STEPS = 4


class Norm(torch.autograd.Function):
    """Normalises rows and multiplies them by a weight, in numpy; `error` is one of its backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, error: str) -> torch.Tensor:
        rows, out = x.detach().numpy(), torch.empty_like(x)
        scale = 1 / np.sqrt(np.square(rows).mean(-1, keepdims=True) + 1e-5)
        if error == "drops out":
            scale = scale * (torch.rand(len(rows), 1) > 0.5).numpy()
        np.multiply(rows * scale, weight.detach().numpy(), out=out.numpy())
        ctx.save_for_backward(x, weight)
        ctx.error, ctx.scale = error, scale
        return out

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        x, weight = ctx.saved_tensors
        scale = torch.from_numpy(ctx.scale)
        normed, of_normed = x * scale, grad * weight
        along = (of_normed * normed).mean(-1, keepdim=True)
        of_x = scale * (of_normed - (0 if ctx.error == "forgets a term" else normed * along))
        of_weight = (grad * normed).sum(0)
        if ctx.error == "twice":
            of_weight = 2 * of_weight
        if ctx.error == "overwrites":  # the gradient that a residual connection still needs
            grad.numpy()[:] = of_x.numpy()
        if ctx.error == "half of the rows":
            of_x = of_x * (torch.arange(len(x)) % 2)[:, None]
        return of_x, of_weight, None


class Rounded(torch.autograd.Function):
    """Rounds in numpy, and passes the gradient on: a straight-through estimator."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        np.round(x.detach().numpy() * 4, out=out.numpy())
        return out.mul_(0.25)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad


class Reversed(torch.autograd.Function):
    """Copies in numpy, and negates the gradient."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        out.numpy()[:] = x.detach().numpy()
        return out

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return -grad


class Scaled(torch.autograd.Function):
    """Squares and multiplies by a number in numpy; its forward gets no context."""

    @staticmethod
    def forward(x: torch.Tensor, factor: float, error: str) -> torch.Tensor:
        return torch.from_numpy(np.square(x.detach().numpy()) * factor)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        x, ctx.factor, ctx.error = inputs
        ctx.save_for_backward(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        if ctx.error == "reads an attribute":  # of its own tensor, which a copy does not have
            assert ctx.saved_tensors[0].gradients == "kept here"
        wrong = {"twice": 2.0}.get(ctx.error, 1.0)
        noise = torch.rand(grad.shape) * 0.1 + 0.95 if ctx.error == "random" else 1.0
        return 2 * grad * ctx.saved_tensors[0] * ctx.factor * wrong * noise, None, None


class TwoScales(nn.Module):
    """Calls the function twice before it uses the results, the last one first. Equal inputs need equal factors."""

    def __init__(self, error: str, apart: bool = True) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 1)
        self.error, self.apart = error, apart

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.first(x)
        other = hidden.tanh() if self.apart else hidden
        other.gradients = "kept here"
        results = [Scaled.apply(hidden, 2.0, ""), Scaled.apply(other, 3.0, self.error)]  # type: ignore[no-untyped-call]
        return self.last(results[1] + results[0])


class Model(nn.Module):
    def __init__(self, function: type[torch.autograd.Function], error: str) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 1)
        self.weight = nn.Parameter(torch.ones(6) if function is Norm else torch.zeros(0))
        self.function, self.error = function, error

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.first(x)
        arguments = (hidden, self.weight, self.error) if self.function is Norm else (hidden,)
        result: Any = self.function.apply(*arguments)  # type: ignore[no-untyped-call]
        return self.last(hidden + result)


def trained(build: Callable[[], nn.Module]) -> list[torch.Tensor]:
    torch.manual_seed(0)
    model = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(STEPS):
        x = torch.randn(16, 6)
        optimizer.zero_grad()
        (model(x) - x[:, :1]).square().mean().backward()
        optimizer.step()
    return [*(parameter.detach().clone() for parameter in model.parameters()), torch.get_rng_state()]


def verdicts(folder: Path, function: type[torch.autograd.Function], error: str = "") -> set[tuple[str, str, str]]:
    return verdicts_of(folder, lambda: Model(function, error))


def verdicts_of(folder: Path, build: Callable[[], nn.Module]) -> set[tuple[str, str, str]]:
    """Train plainly and with every step verified: both end with the same bits. Return verdicts, `first` and `found`."""
    plain = trained(build)
    with traincheck.checked(folder / "run", packs="none", verify_every=1, record="all", budget="1/1"):
        observed = trained(build)
    assert all(map(torch.equal, plain, observed))
    return {
        (str(reading.value), str(value_of(reading.context, "first")), str(value_of(reading.context, "found")))
        for _, windows in RunFolder.open(folder / "run").windows()
        for window in windows
        for reading in window.readings
        if reading.attribute == DERIVATIVE.name
    }


def test_a_right_backward_agrees(tmp_path: Path) -> None:
    assert {verdict for verdict, _, _ in verdicts(tmp_path, Norm)} == {AGREES}


@pytest.mark.parametrize("error", ["forgets a term", "twice", "half of the rows"])
def test_a_wrong_backward_is_named(error: str, tmp_path: Path) -> None:
    found = verdicts(tmp_path, Norm, error)
    assert {verdict for verdict, _, _ in found} == {DISAGREES}
    assert all(first.startswith("function Norm (") for _, first, _ in found)


def test_a_backward_that_overwrites_its_gradient_is_found(tmp_path: Path) -> None:
    found = verdicts(tmp_path, Norm, "overwrites")
    assert {verdict for verdict, _, _ in found} == {DISAGREES}
    assert all(first.startswith("function Norm (") for _, first, _ in found)
    assert all(text.endswith("; the backward of Norm overwrites the gradient that it gets") for _, _, text in found)


@pytest.mark.parametrize("function", [Rounded, Reversed])
def test_a_derivative_that_is_chosen_is_no_error(function: type[torch.autograd.Function], tmp_path: Path) -> None:
    assert DISAGREES not in {verdict for verdict, _, _ in verdicts(tmp_path, function)}


def test_a_kernel_that_draws_other_numbers_is_undecided(tmp_path: Path) -> None:
    found = verdicts(tmp_path, Norm, "drops out")
    assert {verdict for verdict, _, _ in found} == {UNDECIDED}
    assert {text for _, _, text in found} == {"the loss is another one when it is computed again"}


def test_results_are_matched_with_calls_whose_forward_gets_no_context(tmp_path: Path) -> None:
    assert {verdict for verdict, _, _ in verdicts_of(tmp_path / "right", lambda: TwoScales(""))} == {AGREES}
    wrong = verdicts_of(tmp_path / "wrong", lambda: TwoScales("twice"))
    assert {verdict for verdict, _, _ in wrong} == {DISAGREES}
    assert all(first.startswith("function Scaled (") for _, first, _ in wrong)
    alike = verdicts_of(tmp_path / "alike", lambda: TwoScales("", apart=False))
    assert {verdict for verdict, _, _ in alike} == {UNDECIDED}


def test_a_backward_that_draws_random_numbers_draws_those_of_the_program(tmp_path: Path) -> None:
    verdicts = {verdict for verdict, _, _ in verdicts_of(tmp_path, lambda: TwoScales("random"))}
    assert DISAGREES not in verdicts  # what matters: the weights are those of the plain training


def test_a_backward_that_fails_for_copies_is_undecided(tmp_path: Path) -> None:
    found = verdicts_of(tmp_path, lambda: TwoScales("reads an attribute"))
    assert {verdict for verdict, _, _ in found} == {UNDECIDED}
    assert all(text.startswith("it raised AttributeError: ") for _, _, text in found)
