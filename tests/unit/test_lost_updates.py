"""Parameters that an update leaves unchanged: by chance, or because the optimizer passes them over."""

from __future__ import annotations

import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from traincheck.sources.modules.variables import Variable
from traincheck.sources.optimizers.lost_updates import lost_in_rounding
from trained_programs import errors_of

NOT_UPDATED = "parameters-never-updated"


@pytest.mark.parametrize(
    ("dtype", "elements", "updates", "lost"),
    [
        (torch.bfloat16, 1, 1, True),
        (torch.bfloat16, 1, 9, True),
        (torch.bfloat16, 64, 1, False),
        (torch.float32, 1, 1, True),
        (torch.float32, 1, 2, False),
        (torch.float32, 2, 1, True),
        (torch.float32, 2, 2, False),
        (torch.float32, 3, 1, False),
    ],
)
def test_a_small_parameter_may_stay_by_chance(dtype: torch.dtype, elements: int, updates: int, lost: bool) -> None:
    """An adaptive optimizer may make nearly no step with a large gradient, as its average of gradients is near zero."""
    parameter = nn.Parameter(torch.full((elements,), 0.1, dtype=dtype))
    parameter.grad = torch.ones_like(parameter)
    variable = Variable("head.bias", weakref.ref(parameter), owned=True, unchanged_updates=updates)
    assert lost_in_rounding(variable, 3e-3, "some") is lost


@pytest.mark.parametrize(("rate", "lost"), [(1e-40, True), (1e-30, False)])
def test_an_update_below_the_smallest_normal_number_may_be_lost(rate: float, lost: bool) -> None:
    """A schedule that falls by a factor in each epoch gets there."""
    parameter = nn.Parameter(torch.zeros(400))
    parameter.grad = torch.full_like(parameter, 0.01)
    variable = Variable("weight", weakref.ref(parameter), owned=True, unchanged_updates=1)
    assert lost_in_rounding(variable, rate, "some") is lost


class Critic(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.value = nn.Linear(4, 8), nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.value(self.body(x).tanh())


def program() -> None:
    """In the second step the average of the gradients of the last bias is zero."""
    torch.manual_seed(0)
    model = Critic()
    nn.init.constant_(model.value.bias, 0.5)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for number in range(6):
        factor = -0.9 if number == 1 else 1.0
        optimizer.zero_grad()
        (model(torch.randn(16, 4)).mean() * factor).backward()
        optimizer.step()


def test_an_average_of_gradients_that_passes_through_zero_is_no_error(tmp_path: Path) -> None:
    assert not errors_of(tmp_path, program)


def test_a_small_parameter_that_stays_again_and_again_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gather = torch.optim.Adam._init_group

    def skip_scalars(self: Any, group: dict[str, Any], params: list[torch.Tensor], *others: Any) -> Any:
        result = gather(self, group, params, *others)
        params[:] = [torch.zeros_like(param) if param.numel() == 1 else param for param in params]
        return result

    monkeypatch.setattr(torch.optim.Adam, "_init_group", skip_scalars)
    assert NOT_UPDATED in errors_of(tmp_path, program)
