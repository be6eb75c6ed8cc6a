"""Clean programs of two ranks in idioms of public code: `traincheck run` reports no violation of the packs."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

import warm_commands
from rank_jobs import rank_starter
from torch_version import TORCH

UNEVEN = """
import sys
import time
import torch
import torch.distributed as dist
from torch.distributed.algorithms.join import Join
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

def main(kind):
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 4))
    model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    if kind == "momentum":
        optimizer = torch.optim.RMSprop(model.parameters(), lr=0.01)
    if kind == "divided":
        optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.RMSprop, lr=0.01)
    joinables = [model, optimizer] if kind == "divided" else [model]
    torch.manual_seed(rank)
    for epoch in range(2):
        total = torch.zeros(1)
        with Join(joinables):
            for batch in range(8 + 3 * rank):
                loss = model(torch.randn(16, 8)).pow(2).mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                total += loss.detach()
                if kind == "drift" and rank and epoch and batch == 2:
                    with torch.no_grad():
                        model.module[0].weight.add_(0.5)
        dist.all_reduce(total)
    dist.barrier()
    del model, optimizer, loss
    dist.destroy_process_group()
    time.sleep(0.5)

main(sys.argv[-1])
"""

SHARDED = """
import time
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module
)

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.norm = torch.nn.Embedding(16, 8), torch.nn.LayerNorm(8)
        self.up, self.down = torch.nn.Linear(8, 16, bias=False), torch.nn.Linear(16, 8, bias=False)
        self.head = torch.nn.Linear(8, 16, bias=False)

    def forward(self, tokens):
        x = self.embed(tokens)
        x = x + self.down(torch.relu(self.up(self.norm(x))))
        return self.head(x)

def main():
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (2,))
    with torch.device("meta"):
        model = Model()
    parallelize_module(model, mesh, {
        "embed": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "norm": SequenceParallel(),
        "up": ColwiseParallel(input_layouts=Shard(1)),
        "down": RowwiseParallel(output_layouts=Shard(1)),
        "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
    })
    model.to_empty(device="cpu")
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.to_local().normal_(std=0.2)  # so parts on the ranks begin with the same numbers
    table = distribute_tensor(torch.randn(8, 4), mesh, [Shard(0)])
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for step in range(8):
        torch.manual_seed(step)
        tokens = torch.randint(16, (8, 6))
        loss = torch.nn.functional.cross_entropy(model(tokens).flatten(0, 1), (3 * tokens % 16).flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        part = torch.full((16,), float(dist.get_rank()))
        parts = [torch.randn(16), torch.randn(16)] if dist.get_rank() == 0 else None
        dist.scatter(part, parts, src=0)
    dist.barrier()
    del model, optimizer, loss, table
    dist.destroy_process_group()
    time.sleep(0.5)

main()
"""

GATHERED = """
import sys
import time
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

def main(kind):
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 4))
    for layer in (model[0], model[2]):
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    torch.manual_seed(0 if kind == "same" else dist.get_rank())
    for step in range(12):
        inputs = torch.randn(16, 8)
        loss = (model(inputs) - inputs[:, :4]).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    dist.barrier()
    del model, optimizer, loss
    dist.destroy_process_group()
    time.sleep(0.5)

main(sys.argv[-1])
"""


BY_HAND = """
import sys
import time
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

def main(kind):
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    data = TensorDataset(torch.randn(96, 8, generator=torch.Generator().manual_seed(0)))
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=8, sampler=sampler)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.LayerNorm(16), torch.nn.Tanh(), torch.nn.Linear(16, 4))
    if kind == "personal":  # each rank begins its head by itself
        torch.manual_seed(rank)
        torch.nn.init.xavier_uniform_(model[3].weight)
    for p in model[:3].parameters() if kind == "personal" else model.parameters():
        dist.broadcast(p.data, src=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    average = list(model[:3].parameters() if kind in ("personal", "body") else model.parameters())
    if kind == "matrices":
        average = [p for p in average if p.dim() > 1]
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for (x,) in loader:
            optimizer.zero_grad()
            (model(x) - x[:, :4]).pow(2).mean().backward()
            for p in average if kind != "local" else ():
                dist.all_reduce(p.grad)
                p.grad /= 2
            if kind == "noise":
                for p in model.parameters():
                    p.grad.add_(torch.randn(p.shape, generator=torch.Generator().manual_seed(rank)), alpha=0.01)
            optimizer.step()
        if kind == "local":
            for p in model.parameters():
                dist.all_reduce(p.data)
                p.data /= 2
    dist.barrier()
    del model, optimizer, average, p
    dist.destroy_process_group()
    time.sleep(0.5)

main(sys.argv[-1])
"""

OTHER_REDUCTIONS = """
import sys
import time
import torch
import torch.distributed as dist

class Quantized(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        scale = gradient.abs()
        dist.all_reduce(scale, op=dist.ReduceOp.MAX)  # of each element, over ranks
        gradient = (gradient / scale.clamp(min=1e-8) * 127).round() * scale / 127
        dist.all_reduce(gradient)
        return gradient / 2

class Largest(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.clone()
        dist.all_reduce(gradient, op=dist.ReduceOp.MAX)
        return gradient

def main(kind):
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    body, head = torch.nn.Linear(8, 16), torch.nn.Linear(16, 4)
    parameters = [*body.parameters(), *head.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.05)
    torch.manual_seed(dist.get_rank())
    for step in range(8):
        x = torch.randn(8, 8)
        hidden = {"quantized": Quantized, "largest": Largest}.get(kind, torch.autograd.Function)
        h = body(x)
        h = hidden.apply(h) if kind in ("quantized", "largest") else h
        optimizer.zero_grad()
        (head(h.tanh()) - x[:, :4]).pow(2).mean().backward()
        largest = torch.stack([p.grad.abs().max() for p in parameters]).max()
        dist.all_reduce(largest, op=dist.ReduceOp.MAX)
        for p in parameters:
            dist.all_reduce(p.grad, op=dist.ReduceOp.MAX if kind == "maximum" else dist.ReduceOp.SUM)
            p.grad /= 2
        optimizer.step()
    dist.barrier()
    del optimizer, parameters
    dist.destroy_process_group()
    time.sleep(0.5)

main(sys.argv[-1])
"""


def report(folder: Path, program: str, *words: str) -> dict[str, object]:
    """The report of two ranks under `traincheck run` with the shipped packs."""
    (folder / "train.py").write_text(program)
    started = [*rank_starter(folder), "train.py", *words]
    command = [sys.executable, "-m", "traincheck", "run", "--fail-on", "never", "-o", "run", "--", *started]
    done = warm_commands.run(command, cwd=folder, timeout=300)
    assert done.returncode == 0, done.stderr
    content: dict[str, object] = json.loads((folder / "run" / "report.json").read_text())
    return content


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["plain", "divided"])
def test_ranks_with_uneven_data_stay_in_step_behind_their_join(kind: str, tmp_path: Path) -> None:
    """With `divided`, a rank that is done updates its share of the parameters for the others."""
    content = report(tmp_path, UNEVEN, kind)
    assert content["findings"] == [] and content["verdict"] == "clean"


@pytest.mark.slow
def test_replicas_that_drift_behind_a_join_are_reported(tmp_path: Path) -> None:
    content = report(tmp_path, UNEVEN, "drift")
    first = next(finding for finding in content["findings"] if finding["severity"] == "error")  # type: ignore[attr-defined]
    # the first epoch has 11 steps on the rank with more data, the parameter changes behind the third of the second one
    assert first["step"] in (14, 15), first


@pytest.mark.slow
def test_optimizer_state_that_a_join_leaves_behind_is_reported(tmp_path: Path) -> None:
    """`Join` broadcasts only parameters: a rank that ended early continues with older averages than the others."""
    content = report(tmp_path, UNEVEN, "momentum")
    first = next(finding for finding in content["findings"] if finding["severity"] == "error")  # type: ignore[attr-defined]
    assert first["step"] in (12, 13), first


@pytest.mark.slow
def test_parts_of_a_model_and_scattered_values_differ_by_design(tmp_path: Path) -> None:
    content = report(tmp_path, SHARDED)
    assert content["findings"] == [] and content["verdict"] == "clean"


@pytest.mark.slow
@pytest.mark.skipif(TORCH < (2, 6), reason="fully_shard is public from torch 2.6 on")
@pytest.mark.parametrize("kind", ["same", pytest.param("different", marks=pytest.mark.long)])
def test_ranks_that_gather_one_model_are_to_have_different_batches(kind: str, tmp_path: Path) -> None:
    content = report(tmp_path, GATHERED, kind)
    diagnoses = [finding["diagnosis"] for finding in content["findings"]]  # type: ignore[attr-defined]
    assert diagnoses == (["ranks-train-on-same-batch"] if kind == "same" else [])


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["all", pytest.param("personal", marks=pytest.mark.long), "local"])
def test_ranks_that_average_by_hand_may_keep_their_own_layers(kind: str, tmp_path: Path) -> None:
    content = report(tmp_path, BY_HAND, kind)
    assert content["findings"] == [] and content["verdict"] == "clean"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["matrices", "body", pytest.param("noise", marks=pytest.mark.long)])
def test_replicas_that_are_averaged_in_part_are_reported(kind: str, tmp_path: Path) -> None:
    content = report(tmp_path, BY_HAND, kind)
    first = next(finding for finding in content["findings"] if finding["severity"] == "error")  # type: ignore[attr-defined]
    assert (first["diagnosis"], first["step"]) == ("gradients-differ-between-ranks", 1)
    assert any(name.endswith("3.bias") for name in first["variables"]) or kind == "matrices"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sum", pytest.param("quantized", marks=pytest.mark.long)])
def test_statistics_of_gradients_may_be_a_maximum_over_ranks(kind: str, tmp_path: Path) -> None:
    content = report(tmp_path, OTHER_REDUCTIONS, kind)
    assert [found for found in content["findings"] if found["severity"] == "error"] == []  # type: ignore[attr-defined]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["maximum", "largest"])
def test_gradients_that_are_a_maximum_over_ranks_are_reported(kind: str, tmp_path: Path) -> None:
    content = report(tmp_path, OTHER_REDUCTIONS, kind)
    errors = [found for found in content["findings"] if found["severity"] == "error"]  # type: ignore[attr-defined]
    assert ("gradients-combined-wrongly", 1) in {(found["diagnosis"], found["step"]) for found in errors}
