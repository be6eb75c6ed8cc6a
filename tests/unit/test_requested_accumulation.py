"""Accelerators that were asked to accumulate micro-batches: with their context, without it, and by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from traincheck.reporting.json_report import read_json
from trained_programs import Net, errors_of, loss_of

accelerate = pytest.importorskip("accelerate")

WRONG_WEIGHTS = "micro-batches-weigh-differently"


@pytest.fixture(autouse=True)
def fresh_state() -> Iterator[None]:
    """Accelerators of a process share their state."""
    from accelerate.state import AcceleratorState, GradientState

    yield
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


def accelerated(*, steps: int = 2, batches: int = 7, enters: bool = True, prepares: bool = True) -> None:
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=steps)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = TensorDataset(torch.randn(8 * batches, 6), torch.arange(8 * batches) % 3)
    loader = DataLoader(data, batch_size=8, shuffle=True)
    model, optimizer = accelerator.prepare(model, optimizer)
    if prepares:
        loader = accelerator.prepare(loader)
    for _ in range(3):
        for x, y in loader:
            with accelerator.accumulate(model) if enters else nullcontext():
                accelerator.backward(F.cross_entropy(model(x), y))
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()


def accumulated_by_hand(*, terms: int = 1) -> None:
    """With `terms`, one backward of a sum takes the place of as many."""
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=3)
    model = Net()
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    for i in range(12):
        is_last = terms > 1 or (i + 1) % 3 == 0
        with nullcontext() if is_last else accelerator.no_sync(model):
            losses = [loss_of(model) for _ in range(terms)]
            accelerator.backward(sum(losses[1:], losses[0]))
        if is_last:
            optimizer.step()
            optimizer.zero_grad()


def two_networks_in_turn(*, enters: bool) -> None:
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
    networks = [Net(), Net()]
    optimizers = [torch.optim.SGD(network.parameters(), lr=0.1) for network in networks]
    networks, optimizers = accelerator.prepare(*networks), accelerator.prepare(*optimizers)
    for _ in range(8):
        with accelerator.accumulate(*networks) if enters else nullcontext():
            for network, optimizer in zip(networks, optimizers, strict=True):
                accelerator.backward(loss_of(network))
                optimizer.step()
                optimizer.zero_grad()


def each_micro_batch_synchronises() -> None:
    """As in releases whose `sync_each_batch` meant an update for each micro-batch."""
    plain = accelerate.state.GradientState._set_sync_gradients
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(accelerate.state.GradientState, "_set_sync_gradients", lambda state, _: plain(state, True))
        accelerated()


@pytest.mark.parametrize(
    "program",
    [
        each_micro_batch_synchronises,
        partial(accelerated, enters=False),
        partial(accelerated, enters=False, steps=4, prepares=False),
        partial(two_networks_in_turn, enters=False),
    ],
)
def test_updates_that_accumulate_nothing_are_found_at_the_second_one(
    tmp_path: Path, program: Callable[[], None]
) -> None:
    assert WRONG_WEIGHTS in errors_of(tmp_path, program)
    (finding,) = read_json(tmp_path / "run" / "report.json").findings
    assert finding.step <= 2  # a step updates both networks


@pytest.mark.parametrize(
    "program",
    [
        accelerated,
        partial(accelerated, steps=3, prepares=False),
        partial(accelerated, steps=4, batches=1),  # the end of the loader makes each update
        partial(accelerated, steps=1, enters=False),
        accumulated_by_hand,
        partial(accumulated_by_hand, terms=3),
        partial(two_networks_in_turn, enters=True),
    ],
)
def test_accumulation_that_runs_is_clean(tmp_path: Path, program: Callable[[], None]) -> None:
    assert not errors_of(tmp_path, program)
