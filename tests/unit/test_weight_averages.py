"""Moving averages of weights, teachers and target networks: real trainings with an error, and such that mean it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from trained_programs import Net, errors_of, loss_of

DIAGNOSIS = "average-does-not-average"

Update = Callable[[nn.Module, nn.Module, int], None]
"""Updates an average of a model, in a step."""


def with_average(update: Update, *, loads: bool = False, evaluates: bool = False, before: bool = False) -> None:
    model = Net()
    average = Net() if loads else copy.deepcopy(model).requires_grad_(False)
    if loads:
        average.load_state_dict(model.state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    for step in range(8):
        if before:
            move(update, average, model, step)
        optimizer.zero_grad()
        with torch.no_grad():
            loss_of(average)
        loss_of(model).backward()
        optimizer.step()
        if not before:
            move(update, average, model, step)
        if evaluates:
            loss_of(average.eval())


def move(update: Update, average: nn.Module, model: nn.Module, step: int) -> None:
    with torch.no_grad():
        update(average, model, step)


def of_decay(average: nn.Module, model: nn.Module, step: int, *, kept: float = 0.99, taken: float = 0.01) -> None:
    for mean, parameter in zip(average.parameters(), model.parameters(), strict=True):
        mean.mul_(kept).add_(parameter, alpha=taken)


def of_itself(average: nn.Module, model: nn.Module, step: int) -> None:
    for mean in average.parameters():
        mean.lerp_(mean, 0.1)


def that_warms_up(average: nn.Module, model: nn.Module, step: int) -> None:
    kept = (1 + step) / (10 + step)
    of_decay(average, model, step, kept=kept, taken=1 - kept)


def of_all_steps(average: nn.Module, model: nn.Module, step: int) -> None:
    of_decay(average, model, step, kept=step / (step + 1), taken=1 / (step + 1))


def of_a_power(average: nn.Module, model: nn.Module, step: int) -> None:
    """The average of Karras et al. (2024), which forgets its first weights faster than others."""
    kept = (step / (step + 1)) ** 17.97
    of_decay(average, model, step, kept=kept, taken=1 - kept)


def a_copy(average: nn.Module, model: nn.Module, step: int) -> None:
    average.load_state_dict(model.state_dict())


def a_copy_at_times(average: nn.Module, model: nn.Module, step: int) -> None:
    if step % 3 == 2:
        a_copy(average, model, step)


def nothing(average: nn.Module, model: nn.Module, step: int) -> None:
    pass


def noise(average: nn.Module, model: nn.Module, step: int) -> None:
    for mean in average.parameters():
        mean.add_(torch.randn_like(mean), alpha=0.1)


def slow_weights(average: nn.Module, model: nn.Module, step: int) -> None:
    """As the optimizer Lookahead: the trained weights go on from the slow ones."""
    of_decay(average, model, step, kept=0.2, taken=0.8)
    model.load_state_dict(average.state_dict())


def weights_exchanged_for_an_evaluation(average: nn.Module, model: nn.Module, step: int) -> None:
    of_decay(average, model, step)
    for _ in range(2):
        for mean, parameter in zip(average.parameters(), model.parameters(), strict=True):
            before = mean.clone()
            mean.copy_(parameter)
            parameter.copy_(before)
        loss_of(model)


def averaged_by_torch(*, follows: str = "model") -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    for _ in range(8):
        optimizer.zero_grad()
        loss_of(model).backward()
        optimizer.step()
        average.update_parameters(model if follows == "model" else average.module)


def trained_copies_are_averaged() -> None:
    """As in federated and meta-learning: the average is the original, and optimizers hold the copies."""
    model = Net()
    for _ in range(4):
        clients = [copy.deepcopy(model) for _ in range(2)]
        for client in clients:
            optimizer = torch.optim.SGD(client.parameters(), lr=0.3)
            for _ in range(3):
                optimizer.zero_grad()
                loss_of(client).backward()
                optimizer.step()
        with torch.no_grad():
            for parameter, *others in zip(model.parameters(), *(c.parameters() for c in clients), strict=True):
                parameter.copy_(torch.stack(others).mean(0))


swapped = partial(of_decay, kept=0.01, taken=0.99)


@pytest.mark.parametrize(
    "program",
    [
        partial(with_average, swapped),
        partial(with_average, swapped, loads=True),
        partial(with_average, swapped, before=True),
        partial(with_average, partial(of_decay, kept=0.99, taken=0.1)),
        partial(with_average, partial(of_decay, kept=0.9, taken=0.0)),
        partial(with_average, of_itself),
        partial(with_average, of_itself, loads=True),
        partial(averaged_by_torch, follows="itself"),
    ],
)
def test_an_average_that_is_none_is_an_error(tmp_path: Path, program: Callable[[], None]) -> None:
    assert DIAGNOSIS in errors_of(tmp_path, program)


@pytest.mark.parametrize(
    "program",
    [
        partial(with_average, of_decay),
        partial(with_average, of_decay, loads=True, evaluates=True),
        partial(with_average, of_decay, before=True),
        partial(with_average, partial(of_decay, kept=0.9999, taken=0.0001)),
        partial(with_average, that_warms_up),
        partial(with_average, of_all_steps, evaluates=True),
        partial(with_average, of_a_power),
        partial(with_average, a_copy),
        partial(with_average, a_copy, before=True),
        partial(with_average, a_copy_at_times),
        partial(with_average, nothing),
        partial(with_average, noise),
        partial(with_average, slow_weights),
        partial(with_average, weights_exchanged_for_an_evaluation),
        averaged_by_torch,
        trained_copies_are_averaged,
    ],
)
def test_averages_and_copies_are_clean(tmp_path: Path, program: Callable[[], None]) -> None:
    assert DIAGNOSIS not in errors_of(tmp_path, program)
