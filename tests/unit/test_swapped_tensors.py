"""A program may swap its parameters with others (`torch.utils.swap_tensors`), as torch does for converted ones."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from verified_runs import verified


@pytest.fixture
def swapping() -> Iterator[None]:
    before = torch.__future__.get_swap_module_params_on_conversion()
    torch.__future__.set_swap_module_params_on_conversion(True)
    yield
    torch.__future__.set_swap_module_params_on_conversion(before)


def training(model: nn.Sequential, called: list[torch.Tensor]) -> Iterator[None]:
    """Train, convert the model, and train on with a hook on its first weight."""
    for dtype in (torch.float32, torch.float64):
        model.to(dtype)
        if dtype == torch.float64:
            model[0].weight.register_hook(called.append)  # type: ignore[union-attr, arg-type]
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        for _ in range(4):
            optimizer.zero_grad()
            F.mse_loss(model(torch.randn(4, 3, dtype=dtype)), torch.ones(4, 2, dtype=dtype)).backward()
            optimizer.step()
            yield
        optimizer.zero_grad()


@pytest.mark.usefixtures("swapping")
def test_parameters_can_be_swapped_while_they_are_observed(tmp_path: Path) -> None:
    results: list[list[torch.Tensor]] = []
    for observed in (False, True):
        torch.manual_seed(0)
        model, called = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)), list[torch.Tensor]()
        steps = training(model, called)
        if observed:
            assert verified(tmp_path, steps).findings == []
        for _ in steps:
            pass
        assert model[0].weight.dtype == torch.float64
        results.append([*(parameter.detach() for parameter in model.parameters()), *called])
    alone, observed_results = results
    assert len(alone) == len(observed_results) > 4
    assert all(torch.equal(one, other) for one, other in zip(alone, observed_results, strict=True))
