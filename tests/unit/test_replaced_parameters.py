"""Parameters whose place others take while the optimizer holds them, and programs that mean it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from trained_programs import Net, errors_of, loss_of

NEVER_UPDATED = "parameters-never-updated"

Change = Callable[[nn.Module, torch.optim.Optimizer], object]


def updated(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    loss_of(model).backward()
    optimizer.step()


def changed(change: Change, at: int, model: nn.Module | None = None) -> None:
    """Train a model that `change` changes after `at` steps."""
    model = model or Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(8):
        if step == at:
            change(model, optimizer)
        updated(model, optimizer)


def with_a_parameter(model: nn.Module, _: object) -> None:
    model.head.weight = nn.Parameter(model.head.weight.detach().clone())


def with_a_layer(model: nn.Module, _: object) -> None:
    model.head = nn.Linear(8, 3)


def with_a_loaded_layer(model: nn.Module, _: object) -> None:
    state = copy.deepcopy(model.head.state_dict())
    model.load_state_dict({f"head.{name}": value for name, value in state.items()}, strict=False, assign=True)


@pytest.mark.parametrize("change", [with_a_parameter, with_a_layer, with_a_loaded_layer])
@pytest.mark.parametrize("at", [0, 1, 4])
def test_a_replaced_parameter_is_not_trained(tmp_path: Path, change: Change, at: int) -> None:
    assert errors_of(tmp_path, lambda: changed(change, at)) == {NEVER_UPDATED}


def test_a_loaded_model_does_not_excuse_it(tmp_path: Path) -> None:
    def program() -> None:
        model = Net()
        model.load_state_dict(Net().state_dict())
        changed(with_a_layer, 0, model)

    assert errors_of(tmp_path, program) == {NEVER_UPDATED}


def added(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    model.head = nn.Linear(8, 3)
    optimizer.add_param_group({"params": model.head.parameters()})


def frozen(model: nn.Module, _: object) -> None:
    model.head = nn.Linear(8, 3).requires_grad_(False)


def returned(model: nn.Module, _: object) -> None:
    """Evaluate with other weights for a time."""
    former = model.head.weight
    model.head.weight = nn.Parameter(former.detach() * 0.9)
    with torch.no_grad():
        loss_of(model)
    model.head.weight = former


@pytest.mark.parametrize(("change", "at"), [(added, 0), (added, 4), (frozen, 0), (returned, 0), (returned, 4)])
def test_a_change_that_keeps_all_in_training_is_clean(tmp_path: Path, change: Change, at: int) -> None:
    assert errors_of(tmp_path, lambda: changed(change, at)) == set()


def in_tasks() -> None:
    """Continual learning, with an optimizer for each task."""
    model = Net()
    for _ in range(3):
        model.head = nn.Linear(8, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(4):
            updated(model, optimizer)


def a_head_for_each_task() -> None:
    model, heads = Net(), nn.ModuleList(nn.Linear(8, 3) for _ in range(2))
    optimizer = torch.optim.SGD([*model.body.parameters(), *heads.parameters()], lr=0.1)
    for step in range(12):
        model.head = heads[step // 2 % 2]
        updated(model, optimizer)


def by_fast_weights() -> None:
    """Meta-learning of the first order: the gradients of weights that are set for a time train the others."""
    model = Net()
    slow = list(model.parameters())
    optimizer = torch.optim.SGD(slow, lr=0.1)
    owners = [(model.body, "weight"), (model.body, "bias"), (model.head, "weight"), (model.head, "bias")]
    for _ in range(6):
        fast = [nn.Parameter(weight.detach().clone()) for weight in slow]
        for _ in range(2):
            for (owner, name), weight in zip(owners, fast, strict=True):
                setattr(owner, name, weight)
            loss_of(model).backward()
            gradients = [weight.grad for weight in fast]
            fast = [nn.Parameter(weight.detach() - 0.1 * weight.grad) for weight in fast]  # type: ignore[operator]
        for weight, gradient in zip(slow, gradients, strict=True):
            weight.grad = gradient
        optimizer.step()


@pytest.mark.parametrize("program", [in_tasks, a_head_for_each_task, by_fast_weights])
def test_a_program_that_means_it_is_clean(tmp_path: Path, program: Callable[[], None]) -> None:
    assert errors_of(tmp_path, program) == set()
