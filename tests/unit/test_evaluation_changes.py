"""What an evaluation changes: parameters, gradients, buffers, the state of optimizers, random numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from observed_process import observing
from traincheck.relations.consistent.descriptions import DESCRIBED, Descriptions
from traincheck.sources.modules.evaluation_changes import STAYS
from traincheck.sources.tensors.deferred_values import simulated_accelerator
from traincheck.vocab.properties import ElementSet, elements_of, set_of


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def changes(evaluate: Callable[[nn.Module, Any], object], evaluations: int = 1) -> list[set[str]]:
    """What an evaluation changes, as reported: it comes between two updates."""
    with observing(DESCRIBED) as seen:
        torch.manual_seed(0)
        net = Net()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
        for _ in range(evaluations):
            for _ in range(2):
                optimizer.zero_grad()
                net(torch.randn(4, 3)).sum().backward()
                optimizer.step()
            net.eval()
            with torch.no_grad():
                evaluate(net, optimizer)
            net.train()
        net(torch.randn(4, 3)).sum().backward()
        optimizer.step()
    assert seen.faults == []
    readings = [reading for window in seen.windows for reading in window.readings if reading.kind == "evaluation"]
    assert {reading.variable for reading in readings} <= {"Net"}
    return [set(str(reading.value).split("\n")[1:]) for reading in readings]


ROWS = torch.ones(4, 3)


def forward_in_training_mode(net: Any, _: Any) -> None:
    net(ROWS)
    net.layers[0][1].train()
    for _ in range(3):
        net(ROWS)


def writes_to_the_state(net: Any, optimizer: Any) -> None:
    net(ROWS)
    for state in optimizer.state.values():
        state["momentum_buffer"].data.zero_()
    for _ in range(3):
        net(ROWS)


def writes_to_a_parameter(net: Any, _: Any) -> None:
    for _ in range(4):
        net(ROWS)
        net.layers[1][0].weight.data.add_(1)


def clears_gradients(net: Any, optimizer: Any) -> None:
    for _ in range(4):
        net(ROWS)
        optimizer.zero_grad()


def draws(net: Any, _: Any) -> None:
    for _ in range(4):
        net(torch.randn(4, 3))


@pytest.mark.parametrize(
    ("evaluate", "expected"),
    [
        (lambda net, _: [net(ROWS) for _ in range(9)], set()),
        (
            forward_in_training_mode,
            {
                f"the buffer Net.layers.*.*.{name} changes"
                for name in ("running_mean", "running_var", "num_batches_tracked")
            },
        ),
        (writes_to_the_state, {"the state SGD.*.momentum_buffer changes"}),
        (writes_to_a_parameter, {"the parameter Net.layers.*.*.weight changes"}),
        (
            clears_gradients,
            {f"the gradient of Net.layers.*.*.{name} changes" for name in ("weight", "bias")},
        ),
        (draws, {"random numbers of torch are drawn"}),
    ],
)
@pytest.mark.parametrize("accelerator", [False, True])
def test_changes(evaluate: Any, expected: set[str], accelerator: bool) -> None:
    if accelerator:
        with simulated_accelerator():
            assert set().union(*changes(evaluate)) == {*expected, STAYS}
    else:
        assert set().union(*changes(evaluate)) == {*expected, STAYS}


def test_equal_changes_are_reported_once() -> None:
    assert len(changes(draws, evaluations=4)) == 3  # after 1, 2 and 4 forwards


def test_a_pass_over_another_loader_begins_anew() -> None:
    """Each pass draws a seed for the workers, which is no change of the evaluation."""

    def evaluate(net: Any, _: Any) -> None:
        for size in (12, 4, 8):
            for (x,) in DataLoader(TensorDataset(torch.ones(size, 3)), batch_size=4):
                net(x)

    assert set().union(*changes(evaluate)) == {STAYS}


def test_a_model_that_is_made_for_an_evaluation_is_no_change() -> None:
    def evaluate(net: nn.Module, _: Any) -> None:
        net(ROWS)
        copy = Net().eval()
        for _ in range(3):
            copy(ROWS)

    assert set().union(*changes(evaluate)) == {"random numbers of torch are drawn", STAYS}


def test_only_a_change_can_be_wrong() -> None:
    """An evaluation that changes less than those of good runs is no violation."""
    with observing(DESCRIBED) as seen:
        net = Net().eval()
        with torch.no_grad():
            net(ROWS)
    occasions = [
        o for window in seen.windows for o in Descriptions().occasions(window) if "evaluation" in o.subject.grain
    ]
    assert [(o.subject.grain, o.failed) for o in occasions] == [("forward 1 of an evaluation of Net", frozenset())]
    (prop,) = occasions[0].held
    rule = set_of(ElementSet(frozenset({prop, prop._replace(detail="more")}), frozenset()))
    assert prop in elements_of(rule).allowed  # type: ignore[union-attr]
    assert Descriptions.describe(occasions[0].subject, rule) == (
        "nothing changes in forward 1 of an evaluation of Net but what changes in good runs"
    )
