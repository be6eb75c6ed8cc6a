"""`traincheck compare` on one rank against two: data parallel, tensor parallel and a pipeline, right and wrong."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import warm_commands
from torch_version import TORCH

SOURCE = Path(__file__).resolve().parents[2] / "src"
PROGRAM = """
import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

layout, error = sys.argv[1:]
rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
torch.manual_seed(int(os.environ.get("SEED", 0)))


class Attention(nn.Module):
    def __init__(self, width=16, heads=4):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))
        self.size = width // heads

    def forward(self, x):
        q, k, v = (f(x).unflatten(-1, (-1, self.size)).transpose(1, 2) for f in (self.q, self.k, self.v))
        weights = (q @ k.transpose(-1, -2) / self.size**0.5).softmax(-1)
        return self.o((weights @ v).transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.before, self.attention, self.norm = nn.LayerNorm(width), Attention(width), nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        x = x + self.attention(self.before(x))
        return x + self.down(F.gelu(self.up(self.norm(x))))


class GPT(nn.Module):
    def __init__(self, words=50, width=16):
        super().__init__()
        self.embed, self.blocks = nn.Embedding(words, width), nn.ModuleList(Block(width) for _ in range(2))
        self.head = nn.Linear(width, words)

    def forward(self, x):
        x = self.embed(x) if hasattr(self, "embed") else x
        for block in self.blocks:
            x = block(x)
        return self.head(x) if hasattr(self, "head") else x


def pipelined(words):
    parts, outputs, inputs = words.chunk(4), [], []
    for number, part in enumerate(parts):
        if rank == 0:
            outputs.append(model(part[:, :-1]))
            dist.send(outputs[-1].detach(), 1)
        else:
            inputs.append(torch.empty(2, 8, 16))
            dist.recv(inputs[-1], 0)
            logits = model(inputs[-1].requires_grad_())
            labels = parts[number - (error == "order" and step == 3)][:, 1:]
            outputs.append(F.cross_entropy(logits.flatten(0, 1), labels.flatten()) / 4)
    for number, output in enumerate(outputs):
        if rank == 1:
            output.backward()
            dist.send(inputs[number].grad, 0)
        else:
            gradient = torch.empty(2, 8, 16)
            dist.recv(gradient, 1)
            output.backward(gradient)


model = GPT()
if world > 1:
    dist.init_process_group("gloo")
if layout == "tensor":
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    names = {"attention.q": 0, "attention.k": 0, "attention.v": 0, "attention.o": 1, "up": 0, "down": 1}
    plan = {name: (ColwiseParallel, RowwiseParallel)[rowwise]() for name, rowwise in names.items()}
    for block in model.blocks:
        parallelize_module(block, init_device_mesh("cpu", (world,)), plan)
        block.attention.size *= 2 if error == "heads" else 1
if layout == "data":
    model = nn.parallel.DistributedDataParallel(model)
if layout == "pipeline":
    model.blocks = nn.ModuleList(list(model.blocks)[rank::2])
    if rank == 0:
        del model.head
    else:
        del model.embed
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
generator = torch.Generator().manual_seed(1)
for step in range(1, 4):
    words = torch.randint(0, 50, (8, 9), generator=generator)
    if layout == "data":
        words = words[:4] if error == "batch" else words[rank::world]
    optimizer.zero_grad()
    if layout == "pipeline":
        pipelined(words)
    else:
        F.cross_entropy(model(words[:, :-1]).flatten(0, 1), words[:, 1:].flatten()).backward()
    optimizer.step()
if world > 1:
    dist.barrier()
    dist.destroy_process_group()
    time.sleep(0.5)
"""
RUNS = {"one": ("one", "none"), "data": ("data", "none"), "batch": ("data", "batch"), "tensor": ("tensor", "none")}
RUNS |= {"heads": ("tensor", "heads"), "pipeline": ("pipeline", "order")}


def traincheck(folder: Path, *words: str, seed: str = "0") -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1", "SEED": seed}
    command = [sys.executable, "-m", "traincheck", *words]
    return warm_commands.run(command, cwd=folder, env=environ, timeout=300)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with recordings of the program on one rank, and on two in several layouts.

    The run with tensor parallelism has another seed. It begins with the weights of the first run, and is compared with
    it while it trains.
    """
    folder = tmp_path_factory.mktemp("layouts")
    (folder / "train.py").write_text(PROGRAM)
    launcher = ("--", sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    for name, words in RUNS.items():
        command = (*(() if name == "one" else launcher), "train.py", *words)
        if name == "tensor":
            options = ("--packs", "none", "--from", "one", "--against", "one")
            done = traincheck(folder, "run", *options, "-o", name, *command, seed="5")
        else:
            done = traincheck(folder, "collect", "--record", "operations", "-o", name, *command)
        assert len(list((folder / name).glob("operations-*"))) == (1 if name == "one" else 2), done.stderr
    return folder


def compared(folder: Path, a: str, b: str) -> dict[str, Any]:
    done = traincheck(folder, "compare", a, b, "--json")
    assert done.stdout, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    assert done.returncode == (3 if report["result"] == "different" else 0)
    return report


@pytest.mark.slow
@pytest.mark.skipif(TORCH < (2, 5), reason="DTensor became public with torch 2.5")
@pytest.mark.parametrize("layout", ["data", "tensor"])
def test_a_right_layout_is_equal_up_to_rounding(folder: Path, layout: str) -> None:
    report = compared(folder, "one", layout)
    assert report["result"] == "rounding", report["origins"][:1]
    assert [step["step"] for step in report["steps"]] == [1, 2, 3]


@pytest.mark.slow
@pytest.mark.skipif(TORCH < (2, 5), reason="DTensor became public with torch 2.5")
def test_ranks_are_compared_with_one_rank_while_they_train(folder: Path) -> None:
    offline, report = compared(folder, "one", "tensor"), json.loads((folder / "tensor" / "report.json").read_text())
    del offline["spread"]
    assert {name: report["comparison"][name] for name in offline} == offline
    assert not report["findings"]


@pytest.mark.slow
@pytest.mark.skipif(TORCH < (2, 5), reason="DTensor became public with torch 2.5")
def test_two_layouts_of_two_ranks_are_equal(folder: Path) -> None:
    assert compared(folder, "data", "tensor")["result"] == "rounding"


@pytest.mark.slow
@pytest.mark.skipif(TORCH < (2, 5), reason="DTensor became public with torch 2.5")
def test_ranks_with_one_half_of_the_batch_are_named(folder: Path) -> None:
    report = compared(folder, "one", "batch")
    assert report["origins"][0]["kind"] == "data" and report["origins"][0]["step"] == 1


@pytest.mark.slow
@pytest.mark.skipif(TORCH < (2, 5), reason="DTensor became public with torch 2.5")
def test_a_wrong_number_of_heads_is_named(folder: Path) -> None:
    origin = compared(folder, "one", "heads")["origins"][0]
    assert (origin["step"], origin["phase"], origin["module"]) == (1, "forward", "GPT.blocks.0.attention")
    line = next(number for number, text in enumerate(PROGRAM.splitlines(), 1) if "weights = (q @ k" in text)
    assert f"train.py:{line}:" in origin["a"]["operations"][0]["site"]


@pytest.mark.slow
@pytest.mark.skipif(TORCH < (2, 5), reason="DTensor became public with torch 2.5")
def test_a_pipeline_is_equal_until_micro_batches_have_the_targets_of_others(folder: Path) -> None:
    report = compared(folder, "one", "pipeline")
    assert [step["step"] for step in report["steps"]] == [1, 2, 3]
    origin = report["origins"][0]
    assert (origin["step"], origin["phase"], origin["operation"]) == (3, "forward", "nll_loss_forward")
    assert report["renamed"]["GPT[rank 1].blocks.0.up.weight"] == "GPT.blocks.1.up.weight"
