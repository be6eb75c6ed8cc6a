"""TrainCheck records no functions inside torch's own loaders and optimizers, but inside those of a project."""

from __future__ import annotations

import sys

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack
from torch.utils.data import DataLoader, Dataset, TensorDataset

from observed_process import Seen, observing
from traincheck.vocab.demand import Demand
from traincheck.vocab.events import FUNCTION, PROJECT

LINEAR = "torch.nn.functional.linear"


def train(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    model(torch.ones(2, 4)).square().mean().backward()
    optimizer.step()


def steps_with(seen: Seen, name: str) -> list[int]:
    return [window.step for window in seen.windows for call in window.calls if name in call.levels]


def inside_updates(seen: Seen) -> set[str]:
    """The functions recorded inside updates."""
    functions = set()
    for window in seen.windows:
        for call in window.calls:
            around = {level for ancestor in window.ancestors(call) for level in ancestor.levels}
            if "torch.optim.Optimizer.step" in around and call.kind in (FUNCTION, PROJECT):
                functions.add(call.levels[0])
    return functions


def scaled(value: torch.Tensor) -> torch.Tensor:
    return value * 0.1


class ProjectOptimizer(torch.optim.Optimizer):
    """An optimizer of the project."""

    def __init__(self, params: object) -> None:
        super().__init__(params, {})  # type: ignore[arg-type]

    @torch.no_grad()
    def step(self, closure: object = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.sub_(scaled(parameter.grad))


def test_torchs_updates_are_not_recorded_and_later_calls_are() -> None:
    with observing() as seen:
        model = nn.Linear(4, 1)
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(3):
            train(model, optimizer)
    assert inside_updates(seen) == set()
    assert steps_with(seen, LINEAR) == [1, 2, 3]
    assert _get_current_function_mode_stack() == []


OF_LINEAR = Demand.of_calls(LINEAR, "torch.optim.Optimizer.zero_grad")
ZERO = "torch.Tensor.zero_"


@pytest.mark.parametrize("demanded", [False, True])
def test_clearing_of_gradients_is_recorded_on_demand(demanded: bool) -> None:
    demand = OF_LINEAR | Demand.of_calls(ZERO) if demanded else OF_LINEAR
    with observing(demand) as seen:
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            train(model, optimizer)
            optimizer.zero_grad(set_to_none=False)
        (mode,) = _get_current_function_mode_stack()
        optimizer._zero_grad_profile_name = 1
        with pytest.raises((TypeError, RuntimeError)):
            optimizer.zero_grad()
        assert _get_current_function_mode_stack() == [mode]
    assert bool(seen.named(ZERO)) is demanded
    assert steps_with(seen, LINEAR) == [1, 2, 3] and seen.faults == []
    assert _get_current_function_mode_stack() == []


def test_an_update_that_raises_leaves_nothing_suppressed() -> None:
    before = sys.getprofile()
    with observing() as seen:
        model = nn.Linear(4, 1)
        optimizer = torch.optim.Adam(model.parameters())
        train(model, optimizer)
        state = optimizer.state[model.weight]
        state["exp_avg"] = torch.ones(3, 3)
        with pytest.raises(RuntimeError):
            train(model, optimizer)
        state["exp_avg"] = torch.zeros(1, 4)
        for _ in range(2):
            train(model, optimizer)
    assert seen.faults == []
    assert len(steps_with(seen, LINEAR)) == 4
    assert inside_updates(seen) == set()
    assert sys.getprofile() is before
    assert _get_current_function_mode_stack() == []


def test_a_closure_and_an_optimizer_of_the_project_are_recorded() -> None:
    with observing() as seen:
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = model(torch.ones(2, 4)).square().mean()
            loss.backward()
            return loss

        optimizer.step(closure)
        train(model, ProjectOptimizer(model.parameters()))
    functions = inside_updates(seen)
    assert LINEAR in functions
    assert any(name.endswith(".scaled") for name in functions)


class Numbers(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> torch.Tensor:
        return scaled(torch.ones(4) * index)


def test_functions_of_a_data_set_are_recorded_if_it_is_of_the_project() -> None:
    with observing() as seen:
        for _ in DataLoader(TensorDataset(torch.ones(4, 4)), batch_size=2):
            pass
        before = len(seen.calls)
        for _ in DataLoader(Numbers(), batch_size=2):
            torch.sin(torch.ones(1))
    names = [call.levels[0] for call in seen.calls[before:]]
    assert any(name.endswith(".scaled") for name in names)
    assert names.count("torch.sin") == 2


class Counting(TorchFunctionMode):
    count = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.count += 1
        return func(*args, **(kwargs or {}))


def test_a_mode_of_the_program_sees_the_same_update_as_without_traincheck() -> None:
    def counted() -> int:
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with Counting() as mode:
            train(model, optimizer)
            assert _get_current_function_mode_stack()[-1] is mode
        return mode.count

    alone = counted()
    with observing():
        assert counted() == alone
