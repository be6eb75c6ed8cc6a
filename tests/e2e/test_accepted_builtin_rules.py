"""A new program with a lost gradient is reported at once, and never again after its run was accepted."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import warm_commands

SOURCE = Path(__file__).resolve().parents[2] / "src"
PROGRAM = """
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for number in range(20):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(torch.randn(9, 6)), torch.arange(9) % 3).backward()
    if number % 2:
        optimizer.step()
"""


def traincheck(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "traincheck", *words]
    return warm_commands.run(command, cwd=folder, env=environ)


@pytest.mark.slow
def test_an_accepted_loss_of_gradients_is_not_reported_again(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "train.py").write_text(PROGRAM)
    first = traincheck(tmp_path, "run", "-o", "first", "train.py")
    assert first.returncode == 3, first.stderr
    assert "[gradients-lost]" in first.stderr
    assert "these gradients were cleared or replaced" in " ".join(first.stderr.split())
    accepted = traincheck(tmp_path, "accept", "first", "--reason", "half of the batches are for a plot")
    assert accepted.returncode == 0, accepted.stderr
    again = traincheck(tmp_path, "run", "-o", "again", "train.py")
    assert again.returncode == 0, again.stderr
    assert "1 muted" in again.stderr
