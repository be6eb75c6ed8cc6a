"""Tests the content of snapshots, that they are invisible to sources, and that failures are harmless."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from torch import nn

from observed_process import TESTS
from traincheck.sources.attachment import Attachment
from traincheck.sources.checkpoints import snapshots
from traincheck.sources.checkpoints.snapshots import write_snapshot
from traincheck.sources.modules.variables import VariableCatalog
from traincheck.sources.recording.call_sites import CallSites
from traincheck.sources.recording.recorder import Recorder
from traincheck.sources.registry import build_all
from traincheck.vocab.demand import EVERYTHING
from traincheck.vocab.events import Window


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)
        self.head = nn.Linear(4, 1)
        self.head.weight = nn.Parameter(self.head.weight.data.clone())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.body(x)))


class Observed:
    """A short, fully observed training."""

    def __init__(self) -> None:
        self.windows: list[Window] = []
        self.recorder = Recorder(CallSites((TESTS,)), self.windows.append, lambda source, error: None)
        built = build_all(self.recorder, lambda: None)
        self.catalog: VariableCatalog = built.catalog
        self.attachment = Attachment(built.sources, EVERYTHING, self.recorder)
        torch.manual_seed(0)
        self.model = Net()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        for _ in range(3):
            self.optimizer.zero_grad()
            self.model(torch.randn(8, 4)).square().mean().backward()
            self.optimizer.step()

    def close(self) -> None:
        self.recorder.finish()
        self.attachment.undo.close()


@pytest.fixture
def observed() -> Observed:
    import gc

    gc.collect()
    gc.freeze()
    return Observed()


def test_a_snapshot_holds_the_state_of_the_program(observed: Observed, tmp_path: Path) -> None:
    file = tmp_path / "snapshots" / "step-3-rank-1.pt"
    assert write_snapshot(file, observed.catalog, 3, 1) == ""
    observed.close()
    snapshot = torch.load(file, weights_only=True)
    assert (snapshot["step"], snapshot["rank"], snapshot["format"]) == (3, 1, 1)
    parameters = {f"Net.{name}": value for name, value in observed.model.named_parameters()}
    assert snapshot["parameters"].keys() == snapshot["gradients"].keys() == parameters.keys()
    for name, value in parameters.items():
        assert torch.equal(snapshot["parameters"][name], value) and type(snapshot["parameters"][name]) is torch.Tensor
        assert value.grad is not None and torch.equal(snapshot["gradients"][name], value.grad)
    buffers = {f"Net.{name}": value for name, value in observed.model.named_buffers()}
    assert snapshot["buffers"].keys() == buffers.keys()
    assert all(torch.equal(snapshot["buffers"][name], value) for name, value in buffers.items())
    state = snapshot["optimizers"]["AdamW"]
    own = observed.optimizer.state[observed.model.head.weight]
    assert torch.equal(state["state"]["Net.head.weight"]["exp_avg"], own["exp_avg"])
    assert state["param_groups"][0]["lr"] == 0.01
    assert state["param_groups"][0]["params"] == list(parameters)


def test_a_snapshot_records_no_event_and_draws_no_random_number(observed: Observed, tmp_path: Path) -> None:
    grads = [parameter.grad.clone() for parameter in observed.model.parameters() if parameter.grad is not None]
    before = observed.recorder.next_seq(), torch.get_rng_state(), random.getstate()
    assert write_snapshot(tmp_path / "one.pt", observed.catalog, 3, 0) == ""
    after = observed.recorder.next_seq(), torch.get_rng_state(), random.getstate()
    observed.close()
    assert after[0] == before[0] + 1, "no event was told"
    assert torch.equal(after[1], before[1]) and after[2] == before[2]
    now = [parameter.grad for parameter in observed.model.parameters() if parameter.grad is not None]
    assert all(map(torch.equal, now, grads))
    assert not any("save" in call.name for window in observed.windows for call in window.calls)


def test_a_large_snapshot_is_not_written(observed: Observed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "MAX_BYTES", 100)
    reason = write_snapshot(tmp_path / "one.pt", observed.catalog, 3, 0)
    observed.close()
    assert reason.startswith("a snapshot takes") and list(tmp_path.iterdir()) == []


def test_a_full_disk_is_reported_and_leaves_no_file(
    observed: Observed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(value: object, file: object) -> None:
        file.write(b"half")  # type: ignore[attr-defined]
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(snapshots, "_save", full)
    reason = write_snapshot(tmp_path / "one.pt", observed.catalog, 3, 0)
    observed.close()
    assert reason == "no snapshot was written: OSError: [Errno 28] No space left on device"
    assert list(tmp_path.iterdir()) == []


def test_an_unwritable_path_is_reported(observed: Observed, tmp_path: Path) -> None:
    (tmp_path / "snapshots").write_text("a file")
    reason = write_snapshot(tmp_path / "snapshots" / "one.pt", observed.catalog, 3, 0)
    observed.close()
    assert reason.startswith("no snapshot was written: ")
