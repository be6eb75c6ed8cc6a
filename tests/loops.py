"""Training loops for the tests of steps and stages, and helpers that return their windows."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from observed_process import observing
from traincheck.vocab.events import Window

STEP = "torch.optim.Optimizer.step"
BACKWARD = "torch.autograd.backward"
FORWARD = "torch.nn.Module.forward"


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.1), nn.Linear(4, 1))


def loader(batches: int = 3) -> DataLoader[tuple[torch.Tensor, ...]]:
    return DataLoader(TensorDataset(torch.randn(batches * 2, 4)), batch_size=2)


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.01)


def work(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor | None = None) -> None:
    """One plain training step."""
    optimizer.zero_grad()
    model(torch.randn(2, 4) if x is None else x).square().mean().backward()
    optimizer.step()


def windows_of(program: Callable[[], object]) -> list[Window]:
    """The windows recorded for a program."""
    with observing() as seen:
        program()
    assert seen.faults == []
    assert [window.index for window in seen.windows] == list(range(len(seen.windows)))
    return seen.windows


def stages(windows: list[Window]) -> list[str]:
    return [f"{window.stage} {window.step}" for window in windows]


def names(window: Window) -> list[str]:
    """The most general names of the calls, in order."""
    return [call.levels[-1] for call in window.calls]


def updates(windows: list[Window]) -> list[list[str]]:
    """Which optimizers stepped in each training window."""
    return [
        [call.receiver for call in window.calls if call.levels[-1] == STEP]
        for window in windows
        if window.stage == "train"
    ]


def train(steps: int) -> list[str]:
    return [f"train {step}" for step in range(1, steps + 1)]
