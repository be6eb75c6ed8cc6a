"""Groups that separate vectors from matrices and decay the vectors, and the many reasons for other groups."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from trained_programs import errors_of, loss_of

MISPLACED = "weight-decay-misplaced"


class Deep(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.norm, self.head = nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.body(x)).relu())


def matrices(model: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in model.parameters() if parameter.dim() >= 2]


def vectors(model: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in model.parameters() if parameter.dim() < 2]


def stepped(model: nn.Module, groups: Any, make: Callable[..., torch.optim.Optimizer], **settings: Any) -> None:
    optimizer = make(groups, **{"lr": 0.01, **settings})
    for _ in range(3):
        optimizer.zero_grad()
        loss_of(model).backward()
        optimizer.step()


def decayed(
    of_matrices: dict[str, Any], of_vectors: dict[str, Any], make: Any = torch.optim.AdamW, **settings: Any
) -> None:
    model = Deep()
    groups = [{"params": matrices(model), **of_matrices}, {"params": vectors(model), **of_vectors}]
    stepped(model, groups, make, **settings)


def decays(of_matrices: float, of_vectors: float, **settings: Any) -> Callable[[], None]:
    return functools.partial(decayed, {"weight_decay": of_matrices}, {"weight_decay": of_vectors}, **settings)


def default_remains() -> None:
    decayed({"weight_decay": 0.05}, {}, weight_decay=0.05)


def groups_are_added_with_the_default_of_the_class() -> None:
    """YOLOv5 once built AdamW of normalization weights with its default decay, and added weights with less."""
    model = Deep()
    optimizer = torch.optim.AdamW(model.norm.parameters(), lr=0.01)
    optimizer.add_param_group({"params": matrices(model), "weight_decay": 5e-4})
    optimizer.add_param_group({"params": [model.body.bias, model.head.bias]})
    loss_of(model).backward()
    optimizer.step()


class Muon(torch.optim.SGD):
    """Has two algorithms, one for each group."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, lr=lr)


Muon.__module__ = "muon"


@pytest.mark.parametrize(
    "program",
    [
        decays(0.0, 0.05),
        decays(0.05, 0.05),
        decays(0.0, 0.05, make=torch.optim.SGD, momentum=0.9),
        functools.partial(decayed, {"weight_decay": 0.0, "lr": 0.01}, {"weight_decay": 0.05, "lr": 0.02}),
        default_remains,
        groups_are_added_with_the_default_of_the_class,
    ],
)
def test_vectors_are_decayed_like_matrices_or_more(tmp_path: Path, program: Callable[[], None]) -> None:
    assert MISPLACED in errors_of(tmp_path, program)


def one_group_for_each_parameter() -> None:
    """Libraries for detection."""
    model = Deep()
    groups = [{"params": [parameter], "weight_decay": 1e-4} for parameter in model.parameters()]
    stepped(model, groups, torch.optim.SGD)


def one_group_for_each_parameter_of_two_layers() -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 3))
    groups = [{"params": [parameter], "weight_decay": 1e-4} for parameter in model.parameters()]
    stepped(model, groups, torch.optim.SGD)


def groups_of_layers() -> None:
    model = Deep()
    stepped(model, [{"params": layer.parameters(), "weight_decay": 0.1} for layer in model.children()], torch.optim.SGD)


def only_biases_are_trained() -> None:
    model = Deep()
    for parameter in matrices(model):
        parameter.requires_grad_(False)
    groups = [{"params": matrices(model), "weight_decay": 0.0}, {"params": vectors(model), "weight_decay": 0.05}]
    stepped(model, groups, torch.optim.AdamW)


def another_algorithm_for_matrices() -> None:
    decayed({"weight_decay": 0.0, "use_muon": True}, {"weight_decay": 0.05, "use_muon": False}, make=Muon)


def rates_are_set_by_group() -> None:
    """Barlow Twins: equal groups, whose learning rates (zero in the first step) the program sets in each step."""
    model = Deep()
    optimizer = torch.optim.SGD([{"params": matrices(model)}, {"params": vectors(model)}], lr=0.0, weight_decay=1e-6)
    for number in range(4):
        for group, rate in zip(optimizer.param_groups, (0.2, 0.0048), strict=True):
            group["lr"] = rate * number
        optimizer.zero_grad()
        loss_of(model).backward()
        optimizer.step()


class Fused(nn.Module):
    """Keeps the parameters of its layers in flat vectors (tiny-cuda-nn), and tables without decay in front of them."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ParameterList([torch.randn(50, 6), torch.randn(70, 6)])
        self.networks = nn.ParameterList([torch.randn(18), torch.randn(18)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.tables[0][:9] + self.tables[1][:9]
        return x @ self.networks[0].view(6, 3) + x @ self.networks[1].view(6, 3)


def flat_networks_are_decayed() -> None:
    model = Fused()
    groups = [{"params": model.tables}, {"params": model.networks, "weight_decay": 1e-6}]
    stepped(model, groups, torch.optim.Adam)


def wrapped_after_it_was_filled() -> None:
    """Sharpness-aware minimization passes the groups of its own to another optimizer."""
    model = Deep()
    outer = torch.optim.SGD([{"params": matrices(model)}, {"params": vectors(model)}], lr=0.1, weight_decay=1e-4)
    stepped(model, outer.param_groups, torch.optim.SGD)


@pytest.mark.parametrize(
    "program",
    [
        decays(0.05, 0.0),
        decays(0.0, 0.0),
        decays(0.05, 0.02),
        decays(0.01, 0.02),
        functools.partial(decayed, {"weight_decay": 0.05, "lr": 0.01}, {"weight_decay": 0.05, "lr": 0.02}),
        functools.partial(decayed, {}, {}, weight_decay=0.05),
        one_group_for_each_parameter,
        one_group_for_each_parameter_of_two_layers,
        groups_of_layers,
        only_biases_are_trained,
        another_algorithm_for_matrices,
        rates_are_set_by_group,
        flat_networks_are_decayed,
        wrapped_after_it_was_filled,
    ],
)
def test_groups_for_another_reason_are_no_error(tmp_path: Path, program: Callable[[], None]) -> None:
    assert MISPLACED not in errors_of(tmp_path, program)
