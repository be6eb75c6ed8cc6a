"""Two ranks that train parts of one model, stages of a pipeline, or models of their own."""

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
    warm_up = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(step / 2, 1.0))
    torch.manual_seed(1)
    for step in range(8):
        x, y = torch.randn(12, 8), torch.arange(12) % 3
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        warm_up.step()
    dist.barrier()
    del model, optimizer, warm_up, loss
    dist.destroy_process_group()
    time.sleep(0.5)

kind = sys.argv[-1]
main()
"""

PIPELINE = """
import sys
import time
import torch
import torch.distributed as dist
from torch import nn

class First(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.layer = nn.Embedding(12, 8), nn.Linear(8, 8)

    def forward(self, tokens):
        return torch.tanh(self.layer(self.embedding(tokens)))

class Last(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.head = nn.Linear(8, 8), nn.Linear(8, 12, bias=False)

    def forward(self, hidden):
        return self.head(torch.tanh(self.layer(hidden)))

def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0 if kind == "one-seed" else rank)
    model = First() if rank == 0 else Last()
    shared = model.embedding.weight if rank == 0 else model.head.weight
    if kind == "one-seed":  # an untied head that begins as the embedding does, and so do the layers
        with torch.no_grad():
            model.layer.reset_parameters()
            torch.manual_seed(3)
            nn.init.normal_(shared)
            for parameter in model.layer.parameters():
                nn.init.normal_(parameter)
    else:
        dist.broadcast(shared.data, 0)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    torch.manual_seed(1)
    for step in range(8):
        tokens = torch.randint(12, (6,))
        optimizer.zero_grad()
        if rank == 0:
            hidden, gradient = model(tokens), torch.empty(6, 8)
            dist.send(hidden.detach(), 1)
            dist.recv(gradient, 1)
            hidden.backward(gradient)
        else:
            hidden = torch.empty(6, 8)
            dist.recv(hidden, 0)
            loss = nn.functional.cross_entropy(model(hidden.requires_grad_()), (tokens + 1) % 12)
            loss.backward()
            dist.send(hidden.grad, 0)
        if kind == "tied":
            dist.all_reduce(shared.grad)
        optimizer.step()
    dist.barrier()
    del model, optimizer, shared, hidden
    dist.destroy_process_group()
    time.sleep(0.5)

kind = sys.argv[-1]
main()
"""


def errors(folder: Path, kind: str, program: str = PROGRAM) -> set[tuple[str, int]]:
    """The diagnoses and steps of the errors of two ranks under `traincheck run` with the shipped packs."""
    (folder / "train.py").write_text(program)
    started = [*rank_starter(folder), "train.py", kind]
    command = [sys.executable, "-m", "traincheck", "run", "--fail-on", "never", "-o", "run", "--", *started]
    done = warm_commands.run(command, cwd=folder, timeout=300)
    assert done.returncode == 0, done.stderr
    findings = json.loads((folder / "run" / "report.json").read_text())["findings"]
    return {(finding["diagnosis"], finding["step"]) for finding in findings if finding["severity"] == "error"}


@pytest.mark.slow
def test_copies_whose_gradients_are_not_reduced_are_found_after_their_first_change(tmp_path: Path) -> None:
    assert errors(tmp_path, "partial") == {("gradients-differ-between-ranks", 3)}  # the rate is zero at first


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["reduced", pytest.param("adapters", marks=pytest.mark.long)])
def test_copies_that_stay_equal_are_clean(kind: str, tmp_path: Path) -> None:
    assert errors(tmp_path, kind) == set()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ensemble", pytest.param("alike", marks=pytest.mark.long)])
def test_models_of_their_own_and_parts_that_begin_alike_are_no_copies(kind: str, tmp_path: Path) -> None:
    assert "gradients-differ-between-ranks" not in {diagnosis for diagnosis, _ in errors(tmp_path, kind)}


@pytest.mark.slow
def test_a_matrix_that_two_stages_share_and_update_differently_is_an_error(tmp_path: Path) -> None:
    assert errors(tmp_path, "untied", PIPELINE) == {("gradients-differ-between-ranks", 2)}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["tied", "one-seed"])
def test_stages_that_add_their_gradients_or_share_nothing_are_clean(kind: str, tmp_path: Path) -> None:
    assert errors(tmp_path, kind, PIPELINE) == set()
