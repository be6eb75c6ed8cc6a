"""A small net, and the errors that TrainCheck reports of a program that trains it."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

import traincheck
from traincheck.reporting.json_report import read_json
from traincheck.vocab.invariant import ERROR


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head, self.drop = nn.Linear(6, 8), nn.Linear(8, 3), nn.Dropout(0.2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.drop(self.body(x).relu()))


def loss_of(model: nn.Module) -> torch.Tensor:
    return F.cross_entropy(model(torch.randn(9, 6)), torch.arange(9) % 3)


def clipped(model: nn.Module) -> None:
    nn.utils.clip_grad_norm_(model.parameters(), 0.01)


def trained(model: nn.Module) -> None:
    """Train a net with plain steps."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(4):
        optimizer.zero_grad()
        loss_of(model).backward()
        optimizer.step()


def errors_of(folder: Path, program: Callable[[], None]) -> set[str]:
    """The diagnoses of a program that is checked against the shipped packs, at every step."""
    torch.manual_seed(0)
    gc.collect()
    gc.freeze()  # TrainCheck looks for existing modules: those of other tests would take their names
    with traincheck.checked(folder / "run", packs="shipped", budget="1/1"):
        program()
    report = read_json(folder / "run" / "report.json")
    return {finding.identity for finding in report.findings if finding.severity == ERROR}
