"""A source that tells nothing makes no alarm: what rests on it is not judged, and what was before is forgotten."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from traincheck.testing.availability import check_absence
from traincheck.vocab.availability import CORE, OTHERS, serves, touched
from traincheck.vocab.demand import EVERYTHING, NOTHING, READINGS, Demand

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
    """A program that uses what is observed, by sources of all sorts."""
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


TELLING = [source for source in OTHERS if source != "buffers"]  # buffers are read where there are other ranks


@pytest.mark.parametrize("source", TELLING)
def test_what_a_source_does_not_serve_is_told_without_it(source: str, tmp_path: Path, alone: object) -> None:
    assert check_absence(source, lambda: train(tmp_path), TESTS) > 100


def test_a_check_that_proves_nothing_is_no_check(tmp_path: Path, alone: object) -> None:
    with pytest.raises(ValueError, match="tells of nothing"):
        check_absence("buffers", lambda: train(tmp_path), TESTS)


def test_a_demand_rests_on_some_sources_only() -> None:
    relu = Demand(frozenset(("torch.relu",)))
    assert [source for source in OTHERS if serves(source, relu)] == ["functions"]
    steps = Demand(states=frozenset((("run.steps", READINGS),)))
    assert [source for source in OTHERS if serves(source, steps)] == ["run"]
    assert not any(serves(source, NOTHING) for source in OTHERS)
    assert all(serves(source, EVERYTHING) for source in OTHERS)


def test_all_rests_on_the_core_and_on_what_is_not_known() -> None:
    relu = Demand(frozenset(("torch.relu",)))
    assert all(touched((source,), relu) for source in (*CORE, "a source of later"))
    assert not touched(("project", "collectives"), relu)
