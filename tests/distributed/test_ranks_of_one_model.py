"""Two ranks that train parts of one model, or models of their own, on one batch."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

import warm_commands
from rank_jobs import rank_starter

PROGRAM = """
import sys
import time
import torch
import torch.distributed as dist
from torch import nn

class Copied(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x

    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.clone()
        if kind != "partial":
            dist.all_reduce(gradient)
        return gradient

class Reduced(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, gradient):
        return gradient

def part(layer, dim):
    rank = 0 if kind == "alike" else dist.get_rank()  # parts that a rank makes by itself begin alike
    return nn.Parameter(layer.weight.detach().chunk(2, dim)[rank].clone())

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = part(nn.Linear(8, 16, bias=False), 0), part(nn.Linear(16, 8, bias=False), 1)

    def forward(self, x):
        return Reduced.apply(torch.tanh(Copied.apply(x) @ self.up.T) @ self.down.T)

class Personal(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(7 + dist.get_rank())
        self.a, self.b = nn.Linear(8, 4, bias=False), nn.Linear(4, 8, bias=False)
        nn.init.zeros_(self.b.weight)

    def forward(self, x):
        return self.b(self.a(x))

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.norm = nn.Linear(8, 8), nn.LayerNorm(8)
        self.head = nn.Linear(8, 3)
        self.block = Personal() if kind in ("adapters", "ensemble") else Block()
        if kind == "ensemble":
            nn.init.normal_(self.block.b.weight)

    def forward(self, x):
        x = self.stem(x)
        return self.head(x + self.block(self.norm(x)))

def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    torch.manual_seed(1)
    for step in range(8):
        x, y = torch.randn(12, 8), torch.arange(12) % 3
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    dist.barrier()
    del model, optimizer, loss
    dist.destroy_process_group()
    time.sleep(0.5)

kind = sys.argv[-1]
main()
"""


def errors(folder: Path, kind: str) -> set[tuple[str, int]]:
    """The diagnoses and steps of the errors of two ranks under `traincheck run` with the shipped packs."""
    (folder / "train.py").write_text(PROGRAM)
    started = [*rank_starter(folder), "train.py", kind]
    command = [sys.executable, "-m", "traincheck", "run", "--fail-on", "never", "-o", "run", "--", *started]
    done = warm_commands.run(command, cwd=folder, timeout=300)
    assert done.returncode == 0, done.stderr
    findings = json.loads((folder / "run" / "report.json").read_text())["findings"]
    return {(finding["diagnosis"], finding["step"]) for finding in findings if finding["severity"] == "error"}


@pytest.mark.slow
def test_copies_whose_gradients_are_not_reduced_are_found_at_the_second_update(tmp_path: Path) -> None:
    assert errors(tmp_path, "partial") == {("gradients-differ-between-ranks", 2)}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["reduced", pytest.param("adapters", marks=pytest.mark.long)])
def test_copies_that_stay_equal_are_clean(kind: str, tmp_path: Path) -> None:
    assert errors(tmp_path, kind) == set()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ensemble", pytest.param("alike", marks=pytest.mark.long)])
def test_models_of_their_own_and_parts_that_begin_alike_are_no_copies(kind: str, tmp_path: Path) -> None:
    assert "gradients-differ-between-ranks" not in {diagnosis for diagnosis, _ in errors(tmp_path, kind)}
