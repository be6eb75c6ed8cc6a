"""Batches whose samples are packed into one row, and gradients that are zeros from the start: nothing is reported."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

import warm_commands

PACKED = """
import torch
from torch import nn

class Texts(torch.utils.data.Dataset):
    def __init__(self):
        self.samples = [torch.randint(1, 50, (int(torch.randint(3, 9, (1,))),)) for _ in range(96)]

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        return self.samples[index]

def flatten(samples):
    ends = torch.tensor([0, *map(len, samples)]).cumsum(0)
    ids = torch.cat(samples)
    if FORGETS:
        rows = nn.utils.rnn.pad_sequence(samples, batch_first=True)
        return {"input_ids": rows[None], "position_ids": torch.arange(rows.shape[1])[None], "cu_seqlens": ends}
    places = torch.cat([torch.arange(len(sample)) for sample in samples])
    return {"input_ids": ids[None], "position_ids": places[None], "labels": ids[None].clone(), "cu_seqlens": ends}

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.places, self.out = nn.Embedding(50, 16), nn.Embedding(16, 16), nn.Linear(16, 50)

    def forward(self, ids, places):
        return self.out(torch.relu(self.words(ids) + self.places(places)))

torch.manual_seed(0)
model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
loader = torch.utils.data.DataLoader(Texts(), batch_size=4, shuffle=True, collate_fn=flatten)
for batch in loader:
    logits = model(batch["input_ids"], batch["position_ids"])
    labels = batch.get("labels", batch["input_ids"])
    loss = nn.functional.cross_entropy(logits.flatten(0, -2), labels.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

ZERO_BUFFERS = """
import torch
from torch import nn

torch.manual_seed(0)
backbone, head = nn.Sequential(nn.Linear(8, 16), nn.ReLU()), nn.Linear(16, 2)
model = nn.Sequential(backbone, head)
backbone.requires_grad_(False)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for parameter in head.parameters():
    parameter.grad = torch.zeros_like(parameter)
x = torch.randn(256, 8)
y = (x.sum(1) > 0).long()
for step in range(16):
    optimizer.zero_grad(set_to_none=False)
    rows = torch.randint(0, 256, (32,))
    nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
    optimizer.step()
"""


def findings(folder: Path, program: str) -> list[dict[str, str]]:
    """The findings of `traincheck run` with the shipped packs."""
    (folder / "train.py").write_text(program)
    command = [sys.executable, "-m", "traincheck", "run", "--fail-on", "never", "-o", "run", "train.py"]
    done = warm_commands.run(command, cwd=folder, timeout=300)
    assert done.returncode == 0, done.stderr
    report = json.loads((folder / "run" / "report.json").read_text())
    assert report["counts"]["passed"] > 5
    rows: list[dict[str, str]] = report["findings"]
    return rows


@pytest.mark.slow
def test_samples_packed_into_one_row(tmp_path: Path) -> None:
    assert findings(tmp_path, PACKED.replace("FORGETS", "False")) == []


@pytest.mark.slow
def test_a_batch_nested_into_one_row_is_reported(tmp_path: Path) -> None:
    reported = findings(tmp_path, PACKED.replace("FORGETS", "True"))
    assert "batch-became-one-sample" in json.dumps(reported)


@pytest.mark.slow
def test_gradients_that_are_zeros_from_the_start(tmp_path: Path) -> None:
    assert findings(tmp_path, ZERO_BUFFERS) == []
