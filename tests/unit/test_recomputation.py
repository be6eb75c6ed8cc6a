"""Tests the experiment `recomputation`, with both kinds of checkpointing."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.utils.checkpoint as checkpointing
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from traincheck.vocab.verification import AGREES, DISAGREES, RECOMPUTATION
from verified_runs import VerifiedRun, verified

REENTRANT = pytest.mark.parametrize("reentrant", [False, True])


class Net(nn.Module):
    """Computes `body` with checkpointing."""

    def __init__(self, body: nn.Module, reentrant: bool, preserve: bool = True) -> None:
        super().__init__()
        self.first, self.body, self.last = nn.Linear(8, 16), body, nn.Linear(16, 3)
        self.reentrant, self.preserve = reentrant, preserve

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.first(x)
        hidden = checkpoint(self.body, hidden, use_reentrant=self.reentrant, preserve_rng_state=self.preserve)
        return self.last(hidden)


class NetWithInner(Net):
    """Checkpoints a part inside the checkpointed part."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        def outer(hidden: torch.Tensor) -> torch.Tensor:
            inner = checkpoint(self.body, hidden, use_reentrant=self.reentrant, preserve_rng_state=self.preserve)
            return torch.tanh(inner)

        return self.last(checkpoint(outer, self.first(x), use_reentrant=self.reentrant))


class Gate(nn.Module):
    """Multiplies by what it draws from a stream that torch does not restore."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x * torch.full_like(x, random.random())).relu()


def body(dropout: float = 0.3) -> nn.Module:
    """Batch normalization writes its running statistics in both computations, which is harmless."""
    return nn.Sequential(
        nn.Linear(16, 16), nn.BatchNorm1d(16), nn.ReLU(inplace=True), nn.Dropout(dropout), nn.Linear(16, 16)
    )


def training(model: nn.Module, steps: int = 4) -> Iterator[None]:
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(32, 8)).square().mean().backward()
        optimizer.step()
        yield


def run(folder: Path, model: nn.Module, every: int = 2) -> VerifiedRun:
    return verified(folder, training(model), every)


@REENTRANT
@pytest.mark.parametrize("cls", [Net, NetWithInner])
def test_right_programs_agree(cls: type[Net], reentrant: bool, tmp_path: Path) -> None:
    result = run(tmp_path, cls(body(), reentrant))
    assert [verdict.step for verdict in result.verdicts[RECOMPUTATION.name]] == [2, 4]
    assert set(result.of(RECOMPUTATION.name)) == {AGREES}
    assert result.findings == []


@REENTRANT
def test_without_dropout_the_random_state_does_not_matter(reentrant: bool, tmp_path: Path) -> None:
    assert set(run(tmp_path, Net(body(0.0), reentrant, preserve=False)).of(RECOMPUTATION.name)) == {AGREES}


@REENTRANT
@pytest.mark.parametrize("cls", [Net, NetWithInner])
def test_dropout_without_its_random_state(cls: type[Net], reentrant: bool, tmp_path: Path) -> None:
    result = run(tmp_path, cls(body(), reentrant, preserve=False))
    assert set(result.of(RECOMPUTATION.name)) == {DISAGREES}
    verdict = result.first(RECOMPUTATION.name)
    assert (verdict.subject, verdict.first) == (cls.__name__, f"{cls.__name__}.body.3")
    assert verdict.found.startswith("in step 2, the backward computed other results than the forward: ")
    (finding,) = result.findings
    assert (finding["diagnosis"], finding["severity"]) == ("recomputation-differs", "error")


@REENTRANT
def test_a_module_that_computes_something_else_each_time(reentrant: bool, tmp_path: Path) -> None:
    result = run(tmp_path, Net(Gate(), reentrant))
    assert set(result.of(RECOMPUTATION.name)) == {DISAGREES}
    assert result.first(RECOMPUTATION.name).first.startswith("Net.body")


@REENTRANT
def test_parameters_that_change_before_the_backward(reentrant: bool, tmp_path: Path) -> None:
    def steps() -> Iterator[None]:
        model = Net(body(), reentrant)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            loss = model(torch.randn(32, 8)).square().mean()
            model.body[0].weight.data.mul_(1.1)
            loss.backward()
            optimizer.step()
            yield

    result = verified(tmp_path, steps())
    assert set(result.of(RECOMPUTATION.name)) == {DISAGREES}
    assert result.first(RECOMPUTATION.name).first == "Net.body.0"


@REENTRANT
def test_autocast(reentrant: bool, tmp_path: Path) -> None:
    def steps() -> Iterator[None]:
        model = Net(body(), reentrant)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                loss = F.mse_loss(model(torch.randn(32, 8)), torch.zeros(32, 3))
            loss.backward()  # outside autocast, which checkpointing restores
            optimizer.step()
            yield

    assert set(verified(tmp_path, steps()).of(RECOMPUTATION.name)) == {AGREES}


@REENTRANT
@pytest.mark.parametrize("preserve", [True, False])
def test_a_backward_in_another_thread(preserve: bool, reentrant: bool, tmp_path: Path) -> None:
    """Accelerators compute their backward in a thread of their own."""

    def steps() -> Iterator[None]:
        model = Net(body(), reentrant, preserve)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            loss = model(torch.randn(32, 8)).square().mean()
            thread = threading.Thread(target=loss.backward)
            thread.start()
            thread.join()
            optimizer.step()
            yield

    result = verified(tmp_path, steps())
    assert result.of(RECOMPUTATION.name) == [AGREES if preserve else DISAGREES]
    assert preserve or result.first(RECOMPUTATION.name).first == "Net.body.3"


def test_a_program_without_checkpointing_has_no_verdict(tmp_path: Path) -> None:
    assert RECOMPUTATION.name not in run(tmp_path, nn.Sequential(nn.Linear(8, 3), nn.Dropout())).verdicts


@REENTRANT
def test_the_training_is_the_same_to_the_last_bit(reentrant: bool, tmp_path: Path) -> None:
    def trained(observed: bool) -> tuple[list[torch.Tensor], torch.Tensor]:
        torch.manual_seed(1)
        model = Net(body(), reentrant, preserve=False)
        if observed:
            assert len(run(tmp_path, model, every=1).of(RECOMPUTATION.name)) == 4
        else:
            for _ in training(model):
                pass
        return [tensor.detach() for tensor in model.state_dict().values()], torch.get_rng_state()

    (alone, state), (observed, state_observed) = trained(False), trained(True)
    assert all(map(torch.equal, alone, observed)) and torch.equal(state, state_observed)


def test_torch_is_restored(tmp_path: Path) -> None:
    classes = checkpointing.CheckpointFunction, checkpointing._checkpoint_hook, checkpointing._recomputation_hook
    before = [dict(vars(cls)) for cls in classes]
    run(tmp_path, Net(body(), False))
    assert [dict(vars(cls)) for cls in classes] == before
