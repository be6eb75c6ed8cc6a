"""A training begins with the weights and the random states of another."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy
import pytest
import torch
from torch import nn

from traincheck.sources.operations.initial_state import (
    InitialStateSource,
    Restored,
    State,
    read_state,
    restore,
    state_of,
    write_state,
)
from traincheck.sources.recording.call_sites import CallSites
from traincheck.sources.recording.recorder import Recorder
from traincheck.sources.registry import attach, build_all
from traincheck.vocab.demand import NOTHING


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 4)
        self.width = self.first(torch.zeros(1, 3)).shape[1]  # a call in the constructor, with gradients
        self.norm, self.second = nn.BatchNorm1d(self.width), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.norm(self.first(x)).relu())


class Renamed(Net):
    pass


def train(make: type[Net], seed: int) -> list[torch.Tensor]:
    """Train for two steps; the final state of the model, and numbers drawn afterwards."""
    torch.manual_seed(seed)
    random.seed(seed)
    numpy.random.seed(seed)
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with torch.no_grad():
        model.eval()(torch.ones(2, 3))
    model.train()
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.ones(2, 3) + torch.rand(2, 3)).sum().backward()
        optimizer.step()
    drawn = [torch.rand(2), torch.tensor(random.random()), torch.tensor(numpy.random.rand())]
    return [*(value.clone() for value in model.state_dict().values()), *drawn]


@contextmanager
def observed(
    kept: list[State], earlier: Path | None = None, max_bytes: float = 1e6, too_large: list[int] | None = None
) -> Iterator[list[Restored]]:
    """Save the initial state of the training inside, after it began with `earlier`; what it took over."""
    restored: list[Restored] = []
    recorder = Recorder(CallSites(()), lambda window: None, lambda source, error: pytest.fail(f"{source}: {error!r}"))
    load = None if earlier is None else lambda: earlier
    sizes = too_large if too_large is not None else []
    built = build_all(
        recorder,
        lambda: None,
        installed=False,
        initial_state=lambda catalog: InitialStateSource(
            catalog, kept.append, load, max_bytes, restored.append, sizes.append
        ),
    )
    undo, _ = attach(built.sources, NOTHING, recorder)
    try:
        yield restored
        recorder.finish()
    finally:
        undo.close()


def equal(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("make", [Net, Renamed])
def test_a_training_with_another_seed_becomes_equal(make: type[Net], tmp_path: Path) -> None:
    plain, kept = train(Net, 0), []
    with observed(kept):
        assert equal(train(Net, 0), plain), "saving changed the training"
    (state,) = kept
    write_state(state, tmp_path / "state.pt")
    assert list(tmp_path.iterdir()) == [tmp_path / "state.pt"]
    assert not equal(train(make, 1)[:-3], plain[:-3])
    again: list[State] = []
    with observed(again, tmp_path / "state.pt") as restored:
        results = train(make, 1)
    # The data of step 1 are drawn before the model is called, so only the streams that no data use are equal.
    (result,) = restored
    assert result.tensors == 9 and not result.unset and set(result.streams) >= {"python", "torch", "numpy"}
    assert equal(list(state["tensors"].values()), list(again[0]["tensors"].values()))
    assert equal(results[-3:], plain[-3:])


def test_large_weights_are_not_saved() -> None:
    kept: list[State] = []
    too_large: list[int] = []
    with observed(kept, max_bytes=100, too_large=too_large):
        train(Net, 0)
    assert not kept and too_large == [4 * (12 + 4 + 4 * 4 + 16 + 4) + 8]


def test_values_are_matched_by_name_and_checked() -> None:
    tied = torch.full((2, 2), 3.0)
    saved = {
        "A.tied": tied,
        "A.other": tied,
        "A.low": torch.tensor([1.0, 0.1], dtype=torch.bfloat16),
        "A.count": torch.tensor(7),
        "A.shape": torch.zeros(3),
        "A.kind": torch.zeros(2),
        "A.more": torch.zeros(2),
    }
    state = state_of(saved)
    assert state["tensors"]["A.tied"] is state["tensors"]["A.other"]
    state["left_out"]["A.sharded"] = "it was sharded there"
    shared = torch.zeros(2, 2)
    tensors = {
        "B.untied": shared,
        "B.other": shared,
        "B.low": nn.Parameter(torch.zeros(2)),
        "B.count": torch.tensor(0),
        "B.shape": torch.zeros(2, 3),
        "B.kind": torch.zeros(2, dtype=torch.int64),
        "B.new": torch.zeros(2),
        "B.sharded": torch.zeros(2),
        "B.view": torch.zeros(1).expand(4),
    }
    state["tensors"]["A.view"] = torch.arange(4.0)
    versions = {name: tensor._version for name, tensor in tensors.items()}
    with torch.no_grad():
        result = restore(state, tensors)
    assert result.tensors == 3 and shared.eq(3).all() and tensors["B.count"] == 7
    assert torch.equal(tensors["B.low"], saved["A.low"].float())
    assert {name: reason.split(" ")[0] for name, reason in result.unset.items()} == {
        "B.shape": "its",
        "B.kind": "its",
        "B.new": "there",
        "B.sharded": "it",
        "B.view": "RuntimeError:",
    }
    assert result.unset["B.shape"] == "its shape is 3 there and 2x3 here"
    assert tensors["B.low"]._version == versions["B.low"] + 1 and tensors["B.new"]._version == versions["B.new"]


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "model.pt"
    torch.save({"weight": torch.zeros(2)}, file)
    with pytest.raises(ValueError, match=r"model\.pt holds no initial state"):
        read_state(file)
    torch.save({"format": 99, "tensors": {}, "random": {}, "left_out": {}}, file)
    with pytest.raises(ValueError, match="format 99"):
        read_state(file)
