"""A disabled source causes no false alarm: TrainCheck skips the rules that depend on it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from traincheck import plugins
from traincheck.testing.availability import check_absence
from traincheck.vocab.availability import needed_source
from traincheck.vocab.demand import EVERYTHING, NOTHING, Demand

TESTS = str(Path(__file__).parents[1])


def accuracy_of(outputs: torch.Tensor, target: torch.Tensor) -> float:
    return float(((outputs > 0) == (target > 0)).float().mean())


class Net(nn.Module):
    def __init__(self, width: int, num_layers: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(width, width) for _ in range(num_layers)))
        self.norm = nn.BatchNorm1d(width)
        self.head = nn.Linear(width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.relu(self.norm(self.layers(x))))


def bound_gradients(parameters: list[nn.Parameter], max_norm: float) -> None:
    norm = torch.stack([p.grad.norm() for p in parameters if p.grad is not None]).norm()
    for p in parameters:
        if p.grad is not None and norm > max_norm:
            p.grad.mul_(max_norm / norm)


def train(folder: Path) -> None:
    """A program with calls for every source that can be switched off."""
    torch.manual_seed(0)
    model = Net(4, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    x = torch.randn(32, 4)
    loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=8, shuffle=True)
    for epoch in range(2):
        model.train()
        for batch, target in loader:
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                outputs = model(batch)
            nn.functional.mse_loss(outputs.float(), target).backward()
            if epoch:
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            else:
                bound_gradients(list(model.parameters()), max_norm=0.1)
            optimizer.step()
        schedule.step()
        model.eval()
        with torch.no_grad():
            accuracy_of(model(x), x.sum(1, keepdim=True))
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, folder / "state.pt")
        model.load_state_dict(torch.load(folder / "state.pt")["model"])
        total = torch.ones(1)
        torch.distributed.all_reduce(total)


@pytest.fixture
def alone(tmp_path: Path) -> object:
    """A process group of one rank."""
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield None
    torch.distributed.destroy_process_group()


DECLARED = plugins.load(plugins.SOURCE_GROUP, plugins.SOURCES)
REQUIRED = [name for name, declaration in DECLARED.items() if declaration.required]
SWITCHABLE = [name for name, declaration in DECLARED.items() if declaration.can_be_switched_off]

NOT_ALONE = ("buffers", "copies")
"""Buffers are read where other ranks are, and copies of models are compared where a run has a folder."""


SELDOM = ("clipping", "checkpoints", "collectives", "project", "graph")
"""Sources on which few others depend."""


@pytest.mark.parametrize(
    "source",
    [
        pytest.param(name, marks=[pytest.mark.slow, pytest.mark.long] if name in SELDOM else [])
        for name in SWITCHABLE
        if name not in NOT_ALONE
    ],
)
def test_other_events_stay_the_same_without_a_source(source: str, tmp_path: Path, alone: object) -> None:
    assert check_absence(source, lambda: train(tmp_path), TESTS) > 100


def test_a_check_fails_when_the_source_records_nothing(tmp_path: Path, alone: object) -> None:
    with pytest.raises(ValueError, match="reports nothing"):
        check_absence("buffers", lambda: train(tmp_path), TESTS)


def serving(demand: Demand) -> list[str]:
    """The sources that a demand depends on, without the required ones."""
    return [name for name, declaration in DECLARED.items() if declaration.serves(demand) and not declaration.required]


def test_a_demand_depends_on_some_sources_only() -> None:
    assert serving(Demand.of_calls("torch.relu")) == ["functions"]
    assert serving(Demand.of_calls("torch.relu", values=("tensors",))) == ["functions", "summaries"]
    assert serving(Demand.of_readings("run.steps")) == serving(Demand.of_readings("run.*")) == ["run"]
    assert serving(Demand.of_readings("module.*")) == ["module_state"]
    assert serving(Demand.of_calls("torch.optim.Optimizer.state_dict")) == ["checkpoints"]
    assert serving(Demand.of_calls("torch.distributed.all_reduce")) == ["collectives"]
    assert serving(NOTHING) == []
    assert serving(EVERYTHING) == [name for name in DECLARED if name not in REQUIRED]


def test_every_demand_depends_on_required_and_on_unknown_sources() -> None:
    relu = Demand.of_calls("torch.relu")
    assert all(needed_source((source,), relu, DECLARED) for source in (*REQUIRED, "a source of later"))
    assert not needed_source(("project", "collectives"), relu, DECLARED)
    assert needed_source(("project", "functions"), relu, DECLARED) == "functions"
