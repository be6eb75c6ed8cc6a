"""Tests that changes of large parameters are recorded like those of small ones, from few bytes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from loops import STEP
from observed_process import observing
from traincheck.sources.optimizers.parameter_changes import TRUSTED_UPDATES
from traincheck.sources.tensors import hashing
from traincheck.vocab.demand import EVERYTHING, Demand
from traincheck.vocab.events import Change

OF_DATA = Demand.of_calls(STEP, changes=("parameter.data",))
STEPS = 8
assert STEPS > TRUSTED_UPDATES + 2

Step = Callable[[int, "Model", torch.optim.Optimizer], object]


class Model(nn.Module):
    """Three parameters of 512 kB: a table with one used row per step, a frozen layer and a trained one."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(512, 256)
        self.frozen = nn.Linear(256, 512, bias=False).requires_grad_(False)
        self.trained = nn.Linear(512, 256, bias=False)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        features: torch.Tensor = self.trained(self.frozen(self.table(rows)))
        return features


def changes(demand: Demand, step: Step = lambda number, model, optimizer: optimizer.step()) -> dict[str, list[bool]]:
    """For each parameter, whether each step changed it."""
    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with observing(demand) as seen:
        for number in range(1, STEPS + 1):
            optimizer.zero_grad()
            model(torch.tensor([number])).square().mean().backward()
            step(number, model, optimizer)
    assert seen.faults == []
    by_variable: dict[str, list[Change]] = {}
    for change in seen.changes:
        if (change.kind, change.attribute) == ("parameter", "data"):
            by_variable.setdefault(change.variable.removeprefix("Model.").removesuffix(".weight"), []).append(change)
    return {name: [change.changed for change in of_variable] for name, of_variable in by_variable.items()}


@pytest.mark.parametrize("demand", [EVERYTHING, OF_DATA], ids=["everything", "a rule"])
def test_sparse_frozen_and_dense_updates_are_distinguished(demand: Demand) -> None:
    assert changes(demand) == {"table": [True] * STEPS, "frozen": [False] * STEPS, "trained": [True] * STEPS}


@pytest.mark.parametrize("demand", [EVERYTHING, OF_DATA], ids=["everything", "a rule"])
def test_an_update_without_effect_is_recorded_at_once(demand: Demand) -> None:
    def step(number: int, model: Model, optimizer: torch.optim.Optimizer) -> None:
        if number == STEPS - 1:
            model.trained.weight.grad, model.table.weight.grad = None, None
        if number == STEPS:
            optimizer.param_groups[0]["lr"] = 0.0
        optimizer.step()

    changed = changes(demand, step)
    assert changed["trained"] == changed["table"] == [True] * (STEPS - 2) + [False, False]


@pytest.mark.parametrize("demand", [EVERYTHING, OF_DATA], ids=["everything", "a rule"])
def test_a_write_between_updates_is_not_attributed_to_the_update(demand: Demand) -> None:
    def step(number: int, model: Model, optimizer: torch.optim.Optimizer) -> None:
        model.frozen.weight.data.mul_(2)  # which torch does not count
        optimizer.step()

    assert changes(demand, step)["frozen"] == [False] * STEPS


def test_an_update_of_a_frozen_parameter_is_recorded() -> None:
    class Careless(torch.optim.SGD):
        def step(self, closure: object = None) -> None:  # type: ignore[override]
            super().step()
            with torch.no_grad():
                self.param_groups[0]["params"][1].add_(1e-3)

    def step(number: int, model: Model, optimizer: torch.optim.Optimizer) -> None:
        if number > STEPS - 2:
            Careless(model.parameters(), lr=0.1).step()
        else:
            optimizer.step()

    assert changes(OF_DATA, step)["frozen"][-2:] == [True, True]


def test_few_bytes_of_large_parameters_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    read = [0]
    digest = hashing.digest

    def counting(memory: hashing.Memory) -> int:
        read[0] += memory.size
        return digest(memory)

    monkeypatch.setattr(hashing, "digest", counting)
    sizes: list[int] = []

    def step(number: int, model: Model, optimizer: torch.optim.Optimizer) -> None:
        begun = read[0]
        optimizer.step()
        sizes.append(read[0] - begun)

    changes(OF_DATA, step)
    size = 512 * 256 * 4
    assert sizes[0] > 0
    assert max(sizes[TRUSTED_UPDATES + 1 :]) <= 3 * size, "the table, before and after, and its gradient"
    sizes.clear()
    changes(EVERYTHING, step)
    assert max(sizes[TRUSTED_UPDATES + 1 :]) <= 4 * size, "each of them after the update, and that gradient"
