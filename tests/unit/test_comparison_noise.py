"""Repetitions of a run show its noise, and noise is no difference."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from recorded_operations import recorded
from traincheck.cli.commands.compare import compare
from traincheck.comparison.difference import DIFFERENT, ROUNDING, SAME
from traincheck.comparison.run_comparison import compare_runs
from traincheck.trace.folder import RunFolder
from traincheck.trace.operation_files import OperationWriter
from traincheck.trace.run_notes import Manifest
from traincheck.vocab.events import TRAIN, Window
from traincheck.vocab.operations import StepOperations


class Unsteady(nn.Module):
    """Multiplies by `by`, and returns slightly other numbers in each run, as a kernel with atomic additions does."""

    def __init__(self, noise: float, by: float) -> None:
        super().__init__()
        self.layer, self.noise, self.by = nn.Linear(8, 4), noise, by

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.layer(x)
        hidden.detach().numpy()[:] *= 1 + self.noise
        return hidden * self.by


def train(path: Path, noise: float = 0.0, *, by: float = 2.0, data: int = 1) -> Path:
    """Record three steps into a run folder."""
    steps: list[StepOperations] = []
    torch.manual_seed(0)
    with recorded(steps):
        model = Unsteady(noise, by)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        generator = torch.Generator().manual_seed(data)
        for _ in range(3):
            loss = F.cross_entropy(model(torch.randn(6, 8, generator=generator)), torch.arange(6) % 4)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    folder = RunFolder.create(path, Manifest(traincheck="1"))
    writer = OperationWriter(folder.path, 1)
    for step in steps:
        writer.add(step)
    writer.feed(Window(0, 1, TRAIN))
    return path


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return train(tmp_path / "run")


def test_noise_of_a_kernel_is_no_difference_if_the_run_was_repeated(tmp_path: Path, run: Path) -> None:
    again, other = train(tmp_path / "again", 2e-5), train(tmp_path / "other", -4e-5)
    alone = compare_runs(run, other)
    assert alone.result == DIFFERENT and alone.noisiest is None
    repeated = compare_runs(run, other, [again])
    assert repeated.result == ROUNDING and len(repeated.steps) == 3
    assert repeated.noisiest is not None and 1e-5 < repeated.noisiest.distance < 1e-3


def test_more_than_noise_is_a_difference(tmp_path: Path, run: Path) -> None:
    again, other = train(tmp_path / "again", 2e-5), train(tmp_path / "other", by=2.001)
    comparison = compare_runs(run, other, [again])
    assert comparison.result == DIFFERENT
    assert comparison.origins[0].operation.name == "mul"


def test_the_noise_is_printed_first(tmp_path: Path, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    again, other = train(tmp_path / "again", 2e-5), train(tmp_path / "other", by=2.001)
    assert compare(run, other, [again]) == 3
    printed = capsys.readouterr().out.splitlines()
    assert printed[1].startswith("  noise: 1 repetition of the first run, up to ")
    assert compare(run, train(tmp_path / "same"), [train(tmp_path / "twin")]) == 0
    assert "  noise: 1 repetition of the first run, with the same bits" in capsys.readouterr().out


def test_a_run_on_other_data_is_no_repetition(tmp_path: Path, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other_data = train(tmp_path / "other-data", data=2)
    assert compare(run, train(tmp_path / "same"), [other_data]) == 3
    printed = capsys.readouterr()
    assert "is no repetition of" in printed.err
    assert "The runs compute with different data" in printed.out
    assert compare_runs(run, tmp_path / "same").result == SAME
