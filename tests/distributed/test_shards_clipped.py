"""Two ranks that hold parts of a gradient clip it by the norm of the whole gradient, in each way of public code."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

import warm_commands
from rank_jobs import rank_starter
from torch_version import TORCH

PROGRAM = """
import sys
import time
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

LIMIT = 0.05

def local_norm(parameters):
    return torch.stack([parameter.grad.to_local().norm() for parameter in parameters]).norm()

def by_torch(model, norm_type=2.0):
    nn.utils.clip_grad_norm_(model.parameters(), LIMIT, norm_type)

def by_largest(model):
    by_torch(model, float("inf"))

def by_whole_norm(model, times=1.0):
    parameters = list(model.parameters())
    norm = nn.utils.get_total_norm([parameter.grad for parameter in parameters])
    norm = norm.full_tensor() if isinstance(norm, DTensor) else norm
    for layer in model.children():  # each by the norm of all
        nn.utils.clip_grads_with_norm_(list(layer.parameters()), LIMIT, norm)

def layer_by_layer(model):
    for layer in model.children():
        nn.utils.clip_grad_norm_(layer.parameters(), LIMIT)

def by_own_norm(model):
    parameters = list(model.parameters())
    nn.utils.clip_grads_with_norm_(parameters, LIMIT, local_norm(parameters))

def by_smaller_norm(model):
    parameters = list(model.parameters())
    norms = local_norm(parameters)
    dist.all_reduce(norms, op=dist.ReduceOp.MAX)
    nn.utils.clip_grads_with_norm_(parameters, LIMIT, norms)

def sharded(shape):
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "shard")[-len(shape):])
    model = nn.Sequential(nn.Linear(8, 17), nn.Tanh(), nn.LayerNorm(17), nn.Linear(17, 4))
    for layer in (model[0], model[3], model):
        fully_shard(layer, mesh=mesh)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_force_sum_reduction_for_comms(True)
    return model

def parallel():
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
    mesh = init_device_mesh("cpu", (2,))
    return parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})

def plain():
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))

def train(model, clip, seed):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    torch.manual_seed(seed)
    for _ in range(4):
        optimizer.zero_grad()
        model(torch.randn(16, 8)).pow(2).sum().backward()
        clip(model)
        optimizer.step()

def main(kind):
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    if kind == "clean":
        for clip in (by_torch, by_largest, by_whole_norm, layer_by_layer):
            train(sharded((2,)), clip, rank)
        train(sharded((2, 1)), by_whole_norm, rank)
        train(sharded((1, 2)), by_torch, rank)
        train(parallel(), by_torch, 1)
    elif kind == "independent":
        torch.manual_seed(rank)
        train(plain(), by_torch, rank)
    else:
        train(sharded((2,)), by_own_norm if kind == "own" else by_smaller_norm, rank)
    dist.barrier()
    dist.destroy_process_group()
    time.sleep(0.5)

main(sys.argv[-1])
"""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(TORCH < (2, 7), reason="fully_shard sums on request, from torch 2.7 on"),
]


def errors(folder: Path, kind: str) -> list[tuple[str, int]]:
    """Diagnosis and step of the errors that two ranks get without a good run."""
    (folder / "train.py").write_text(PROGRAM)
    started = [*rank_starter(folder), "train.py", kind]
    words = ["run", "--fail-on", "never", "-o", "run", "--", *started]
    done = warm_commands.run([sys.executable, "-m", "traincheck", *words], cwd=folder, timeout=300)
    assert done.returncode == 0, done.stderr
    findings = json.loads((folder / "run" / "report.json").read_text())["findings"]
    return [(finding["diagnosis"], finding["step"]) for finding in findings if finding["severity"] == "error"]


@pytest.mark.parametrize("kind", ["clean", "independent"])
def test_ranks_that_use_the_norm_of_the_whole_gradient_are_clean(kind: str, tmp_path: Path) -> None:
    assert errors(tmp_path, kind) == []


@pytest.mark.parametrize("kind", ["own", "smaller"])
def test_a_norm_of_a_part_is_reported_in_the_first_step(kind: str, tmp_path: Path) -> None:
    """Ranks with one factor are wrong as well, if the factor leaves the gradient above the limit."""
    assert errors(tmp_path, kind) == [("shards-clipped-differently", 1)]
