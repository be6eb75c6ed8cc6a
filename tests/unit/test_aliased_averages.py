"""Target networks and averages that are the trained model itself, and updates that look like it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

from trained_programs import Net, errors_of, loss_of

DIAGNOSIS = "average-does-not-average"

Update = Callable[[nn.Module, nn.Module], None]
"""Updates a target network from the trained one."""


def pairs(target: nn.Module, source: nn.Module) -> zip[tuple[nn.Parameter, nn.Parameter]]:
    return zip(target.parameters(), source.parameters(), strict=True)


def copied(target: nn.Module, source: nn.Module) -> None:
    for ours, other in pairs(target, source):
        ours.data.copy_(other.data)


def interpolated(target: nn.Module, source: nn.Module) -> None:
    for ours, other in pairs(target, source):
        ours.lerp_(other, 0.05)


def scaled_and_added(target: nn.Module, source: nn.Module) -> None:
    for ours, other in pairs(target, source):
        ours.mul_(0.95).add_(other, alpha=0.05)


def scaled_and_added_share(target: nn.Module, source: nn.Module) -> None:
    for ours, other in pairs(target, source):
        ours.data.mul_(0.95).add_((1 - 0.95) * other.data)


def copied_sum(target: nn.Module, source: nn.Module) -> None:
    for ours, other in pairs(target, source):
        ours.data.copy_(0.05 * other.data + (1 - 0.05) * ours.data)


def assigned_sum(target: nn.Module, source: nn.Module) -> None:
    for ours, other in pairs(target, source):
        ours.data = other.data * 0.05 + ours.data * (1.0 - 0.05)


def moved_by_difference(target: nn.Module, source: nn.Module) -> None:
    for ours, other in pairs(target, source):
        ours += 0.05 * (other - ours)


def interpolated_together(target: nn.Module, source: nn.Module) -> None:
    torch._foreach_lerp_(list(target.parameters()), list(source.parameters()), 0.05)


def added_together(target: nn.Module, source: nn.Module) -> None:
    ours = list(target.parameters())
    torch._foreach_mul_(ours, 0.95)
    torch._foreach_add_(ours, list(source.parameters()), alpha=0.05)


UPDATES = (
    copied,
    interpolated,
    scaled_and_added,
    scaled_and_added_share,
    copied_sum,
    assigned_sum,
    moved_by_difference,
    interpolated_together,
    added_together,
)


def with_target(update: Update, *, of: str = "itself") -> None:
    """Train a net, and update its target network after each step."""
    net = Net()
    target = net if of == "itself" else copy.deepcopy(net)
    if of == "shared body":
        target.body = net.body
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(6):
        optimizer.zero_grad()
        with torch.no_grad():
            loss_of(target)
        loss_of(net).backward()
        optimizer.step()
        with torch.no_grad():
            update(target, net)


def of_part_of_a_model(*, shares: bool = True) -> None:
    """As in BYOL: both encoders are layers of one model."""

    class Learner(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.online, self.predictor = Net(), nn.Linear(3, 3)
            self.target = self.online if shares else copy.deepcopy(self.online)
            for parameter in () if shares else self.target.parameters():
                parameter.requires_grad = False

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                target = self.target(x)
            return self.predictor(self.online(x)) - target

    model = Learner()
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    for _ in range(6):
        optimizer.zero_grad()
        loss_of(model).backward()
        optimizer.step()
        with torch.no_grad():
            scaled_and_added(model.target, model.online)


def one_of_two_targets(*, shares: bool = True) -> None:
    """As in an actor and a critic: one line updates both targets."""
    nets = [Net(), Net()]
    targets = [copy.deepcopy(nets[0]), nets[1] if shares else copy.deepcopy(nets[1])]
    optimizer = torch.optim.SGD([p for net in nets for p in net.parameters()], lr=0.1)
    for _ in range(6):
        optimizer.zero_grad()
        for net in nets:
            loss_of(net).backward()
        optimizer.step()
        for target, net in zip(targets, nets, strict=True):
            with torch.no_grad():
                copied_sum(target, net)


def decayed_by_hand(update: Callable[[nn.Parameter], None]) -> None:
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(6):
        optimizer.zero_grad()
        loss_of(net).backward()
        optimizer.step()
        with torch.no_grad():
            for parameter in net.parameters():
                update(parameter)


def decays_in_place(parameter: nn.Parameter) -> None:
    parameter.mul_(1 - 1e-4)


def decays_by_adding(parameter: nn.Parameter) -> None:
    parameter.add_(parameter, alpha=-1e-4)


def decays_by_a_copy(parameter: nn.Parameter) -> None:
    parameter.data = parameter.data - 1e-7 * parameter.data


def decays_and_adds_noise(parameter: nn.Parameter) -> None:
    parameter.mul_(0.9).add_(torch.randn_like(parameter), alpha=0.1)


def is_normalised(parameter: nn.Parameter) -> None:
    parameter.copy_(parameter / parameter.norm())


def is_clipped(parameter: nn.Parameter) -> None:
    parameter.data.copy_(parameter.data.clamp(-100, 100))


def is_symmetric(parameter: nn.Parameter) -> None:
    if parameter.ndim == 2 and parameter.shape[0] == parameter.shape[1]:
        parameter.copy_(0.5 * parameter + 0.5 * parameter.t())


def is_converted(parameter: nn.Parameter) -> None:
    parameter.data = parameter.data.to(torch.float32)


def is_rounded(parameter: nn.Parameter) -> None:
    parameter.copy_(parameter.to(torch.bfloat16))


def trained_by_hand() -> None:
    net = Net()
    helper = torch.optim.SGD(Net().parameters(), lr=0.1)
    for _ in range(6):
        net.zero_grad()
        loss_of(net).backward()
        helper.step()
        with torch.no_grad():
            for parameter in net.parameters():
                if parameter.grad is not None:
                    parameter.mul_(1 - 0.1).add_(parameter.grad, alpha=-0.1)
                    parameter.copy_(parameter - 0.1 * parameter.grad)


def exchanged_for_an_evaluation() -> None:
    """The average is loaded into the model, evaluated, and taken out again."""
    net = Net()
    average = [parameter.detach().clone() for parameter in net.parameters()]
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(6):
        optimizer.zero_grad()
        loss_of(net).backward()
        optimizer.step()
        with torch.no_grad():
            for mean, parameter in zip(average, net.parameters(), strict=True):
                mean.mul_(0.9).add_(parameter, alpha=0.1)
            kept = [parameter.clone() for parameter in net.parameters()]
            for mean, parameter in zip(average, net.parameters(), strict=True):
                parameter.copy_(mean)
            loss_of(net.eval())
            for before, parameter in zip(kept, net.train().parameters(), strict=True):
                parameter.copy_(before)


@pytest.mark.parametrize(
    "program",
    [*(partial(with_target, update) for update in UPDATES), of_part_of_a_model, one_of_two_targets],
)
def test_a_target_that_is_the_model_itself_is_an_error(tmp_path: Path, program: Callable[[], None]) -> None:
    assert DIAGNOSIS in errors_of(tmp_path, program)


@pytest.mark.parametrize(
    "program",
    [
        *(partial(with_target, update, of="a copy") for update in UPDATES),
        *(partial(with_target, update, of="shared body") for update in UPDATES),
        partial(of_part_of_a_model, shares=False),
        partial(one_of_two_targets, shares=False),
        partial(decayed_by_hand, decays_in_place),
        partial(decayed_by_hand, decays_by_adding),
        partial(decayed_by_hand, decays_by_a_copy),
        partial(decayed_by_hand, decays_and_adds_noise),
        partial(decayed_by_hand, is_normalised),
        partial(decayed_by_hand, is_clipped),
        partial(decayed_by_hand, is_symmetric),
        partial(decayed_by_hand, is_converted),
        partial(decayed_by_hand, is_rounded),
        trained_by_hand,
        exchanged_for_an_evaluation,
    ],
)
def test_updates_of_real_copies_and_of_weights_are_clean(tmp_path: Path, program: Callable[[], None]) -> None:
    assert DIAGNOSIS not in errors_of(tmp_path, program)
