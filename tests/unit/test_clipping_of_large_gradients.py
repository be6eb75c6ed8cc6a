"""Tests that the norm recorded after clipping of large gradients is correct, though it is rarely computed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import nn

from observed_process import observing
from traincheck.sources.gradients import clipping
from traincheck.sources.tensors.call_summaries import FIRST_STEPS, READ_INTERVAL
from traincheck.vocab.events import Call
from traincheck.vocab.facts import value_of

CLIP = "torch.nn.utils.clip_grad_norm_"
STEPS = READ_INTERVAL * 2
LIMIT = 0.5

Clips = Callable[..., torch.Tensor]


def clipped(clip: Clips | None, monkeypatch: pytest.MonkeyPatch) -> tuple[list[Call], list[float], list[int]]:
    """Return the calls of a replaced clipping function, the norms it left, and the steps in which norms were
    computed."""
    torch.manual_seed(0)
    added: list[int] = []
    exact = clipping.gradient_norms
    norms: list[float] = []

    def counting(gradients: list[torch.Tensor], norm_type: float) -> list[Any]:
        added.append(len(norms) + 1)
        return exact(gradients, norm_type)

    monkeypatch.setattr(clipping, "gradient_norms", counting)
    if clip is not None:
        monkeypatch.setattr(nn.utils, "clip_grad_norm_", clip)
    model = nn.Sequential(nn.Linear(256, 512), nn.Linear(512, 256))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with observing() as seen:
        for _ in range(STEPS):
            optimizer.zero_grad()
            model(torch.randn(8, 256)).square().sum().backward()
            nn.utils.clip_grad_norm_(model.parameters(), LIMIT)
            norms.append(float(torch.linalg.vector_norm(torch.stack([p.grad.norm() for p in model.parameters()]))))
            optimizer.step()
    assert seen.faults == []
    return seen.named(CLIP), norms, added


def wrong_factor(parameters: Iterable[torch.Tensor], most: float) -> torch.Tensor:
    """Leave twice the norm of the limit."""
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    total = torch.linalg.vector_norm(torch.stack([gradient.norm() for gradient in gradients]))
    for gradient in gradients:
        gradient.mul_(2 * most / (total + 1e-6))
    return total


def test_the_norm_is_true_and_seldom_added_up(monkeypatch: pytest.MonkeyPatch) -> None:
    calls, norms, added = clipped(None, monkeypatch)
    assert [value_of(call.result, "norm_after") for call in calls] == pytest.approx(norms, rel=1e-5)
    assert added == [step for step in range(1, STEPS + 1) if step <= FIRST_STEPS or step % READ_INTERVAL == 0]


def test_another_scaling_factor_does_not_guess_the_norm(monkeypatch: pytest.MonkeyPatch) -> None:
    calls, norms, added = clipped(wrong_factor, monkeypatch)
    assert [value_of(call.result, "norm_after") for call in calls] == pytest.approx(norms, rel=1e-5)
    assert max(norms) > LIMIT
    assert added == list(range(1, STEPS + 1))
