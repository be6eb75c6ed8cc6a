"""Tests of the readings of buffers on several ranks, and of the rule that compares them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
import torch
import torch.distributed as dist

from observed_process import observing
from traincheck.relations.consistent.relation import Consistent
from traincheck.testing.readable_traces import from_text
from traincheck.vocab.demand import Demand
from traincheck.vocab.events import Reading, Window

USED = "buffer.used_data"


def step(number: int, rank: int, value: int, stage: str = "train") -> Window:
    (window,) = from_text(f"window {stage} step={number} rank={rank}\n  reading {USED} Net.mean {value}")
    return window


def held(*values: Sequence[int], stage: str = "train") -> list[bool]:
    """For each step and pair of ranks with equal buffers before: whether the buffers are equal."""
    relation, occasions = Consistent(), []
    for number, of_ranks in enumerate(values, start=1):
        windows = [step(number, rank, value, stage) for rank, value in enumerate(of_ranks)]
        occasions += [occasion for occasion in relation.across(windows) if occasion.subject.api == USED]
    return [bool(occasion.held) for occasion in occasions]


def test_synchronized_buffers_are_distinguished_from_per_rank_buffers() -> None:
    assert held((1, 1), (2, 2), (3, 3), (4, 4)) == [True, True]
    assert held((1, 1), (2, 3), (4, 5)) == [], "the same at first only"
    assert held((1, 1), (2, 2), (3, 4)) == [False]
    assert held((1, 1), stage="eval") == []


def test_the_rank_is_named() -> None:
    relation = Consistent()
    for number, values in enumerate(((1, 1, 1), (2, 2, 2), (7, 7, 8)), start=1):
        windows = [step(number, rank, value) for rank, value in enumerate(values)]
        occasions = list(relation.across(windows))
    notes = {occasion.note for occasion in occasions if occasion.subject.api == USED and occasion.failed}
    assert notes == {"rank 2 differs from ranks 0, 1 in what the buffer holds when it is used"}


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A job of two ranks, of which this is one."""
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_world_size", lambda group=None: 2)
    yield


class Wrapped(torch.nn.Module):
    """Sets the statistics before each call, as a wrapper does that sends them to all ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            self.inner[1].running_mean.fill_(3.0)
        return self.inner(x)


def trained() -> list[Reading]:
    with observing(Demand.of_readings(USED)) as seen:
        model = Wrapped()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            for _ in range(2):
                model(torch.randn(8, 4)).sum().backward()
            optimizer.step()
        model.eval()
        model(torch.randn(8, 4))
    assert seen.faults == []
    return seen.readings


@pytest.mark.usefixtures("job")
def test_buffers_are_read_once_per_step_at_the_call_of_their_owner() -> None:
    readings = trained()
    assert [reading.variable.rsplit(".", 1)[1] for reading in readings] == [
        "running_mean",
        "running_var",
        "num_batches_tracked",
    ] * 3
    assert len({reading.value for reading in readings if reading.variable == "Wrapped.inner.1.running_mean"}) == 1
    assert len({reading.value for reading in readings if reading.variable == "Wrapped.inner.1.running_var"}) == 3


def test_a_single_process_reads_no_buffers() -> None:
    assert trained() == []
