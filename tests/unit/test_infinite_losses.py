"""Losses that are NaN or infinite."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from traincheck.sources.tensors.deferred_values import simulated_accelerator
from trained_programs import Net, errors_of

NOT_FINITE = "loss-not-finite"


def trained(loss_of: Callable[[int, torch.Tensor], torch.Tensor]) -> Callable[[], None]:
    def program() -> None:
        torch.manual_seed(0)
        model: nn.Module = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        for step in range(1, 7):
            optimizer.zero_grad()
            loss_of(step, model(torch.randn(8, 6))).backward()
            optimizer.step()

    return program


def of_an_empty_mask(step: int, scores: torch.Tensor) -> torch.Tensor:
    kept = scores.max(dim=1).values > (1e9 if step == 3 else -1e9)
    return F.cross_entropy(scores[kept], torch.zeros(int(kept.sum()), dtype=torch.long))


def logarithm_of_zero(step: int, scores: torch.Tensor) -> torch.Tensor:
    return -scores.softmax(dim=1)[:, 0].mul(step != 2).log().mean()


@pytest.mark.parametrize("loss_of", [of_an_empty_mask, logarithm_of_zero])
@pytest.mark.parametrize("on_accelerator", [False, True])
def test_a_loss_that_is_no_number_is_the_error(
    tmp_path: Path, loss_of: Callable[[int, torch.Tensor], torch.Tensor], on_accelerator: bool
) -> None:
    program = trained(loss_of)
    if on_accelerator:
        with simulated_accelerator():
            errors = errors_of(tmp_path, program)
    else:
        errors = errors_of(tmp_path, program)
    assert NOT_FINITE in errors


@pytest.mark.parametrize(("skipped", "is_error"), [((2, 3, 5, 6), False), ((3, 4, 5), True)])
def test_a_loss_whose_update_is_skipped_is_none_unless_it_comes_again(
    tmp_path: Path, skipped: tuple[int, ...], is_error: bool
) -> None:
    def program() -> None:
        model: nn.Module = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(1, 9):
            optimizer.zero_grad()
            loss = model(torch.randn(8, 6)).square().mean() * (float("nan") if step in skipped else 1)
            loss.backward()
            if torch.isfinite(loss):
                optimizer.step()

    assert (NOT_FINITE in errors_of(tmp_path, program)) is is_error


def test_a_large_loss_and_one_that_overflows_in_float16_are_none(tmp_path: Path) -> None:
    def loss_of(step: int, scores: torch.Tensor) -> torch.Tensor:
        return scores.mean() + 1e30 if step % 2 else (scores.mean().half() + 60_000) * 2

    assert NOT_FINITE not in errors_of(tmp_path, trained(loss_of))


def test_losses_of_several_tensors_are_left_alone(tmp_path: Path) -> None:
    def program() -> None:
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            scores = model(torch.randn(8, 6))
            torch.autograd.backward([scores[0].sum(), scores[1].sum()])
            optimizer.step()

    assert not errors_of(tmp_path, program)
