"""Two gloo ranks in one run folder: what is learned of ranks together, and what shows when they go apart."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import sys
import time
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

def main(seed):
    dist.init_process_group("gloo")
    torch.manual_seed(seed)
    data = TensorDataset(x := torch.randn(192, 4), x.sum(1, keepdim=True))
    sampler = DistributedSampler(data, shuffle=True, seed=seed)
    loader = DataLoader(data, batch_size=8, sampler=sampler)
    inner = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    model = DistributedDataParallel(inner)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        total = torch.zeros(1)
        for batch, target in loader:
            optimizer.zero_grad()
            loss = (model(batch) - target).pow(2).mean()
            loss.backward()
            optimizer.step()
            total += loss.detach()
        dist.all_reduce(total)
    dist.barrier()
    del model, inner, optimizer, loss, total, batch, target, data, loader, x
    dist.destroy_process_group()
    time.sleep(0.5)

main(int(sys.argv[1]))
"""

APART = ("loss = (model(batch)", "loss = (inner(batch)")
"""The forward goes through the inner module, so that gradients are never reduced."""
SAME_SHARD = ("sampler=sampler)", "shuffle=False)")
"""Without the sampler every rank sees the same data."""


def traincheck(home: Path, *words: str, expect: int = 0) -> None:
    command = [sys.executable, "-m", "traincheck", *words]
    done = subprocess.run(command, cwd=home, capture_output=True, text=True, timeout=300)
    assert done.returncode == expect, done.stderr


def collect(home: Path, folder: str, text: str, seed: int) -> None:
    (home / "train.py").write_text(text)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    traincheck(home, "collect", "-o", folder, "--", *torchrun, "train.py", str(seed))


def findings(home: Path, folder: str, expect: int) -> str:
    """All that the check of a folder found, in one text."""
    traincheck(home, "check", folder, "--book", "book.jsonl", "--json", f"{folder}.json", expect=expect)
    return json.dumps(json.loads((home / f"{folder}.json").read_text())["findings"])


@pytest.mark.slow
def test_ranks_that_go_apart_are_told(tmp_path: Path) -> None:
    for seed in (1, 2, 3):
        collect(tmp_path, f"good{seed}", PROGRAM, seed)
    traincheck(tmp_path, "infer", "good1", "good2", "good3", "-o", "book.jsonl")
    collect(tmp_path, "clean", PROGRAM, 4)
    assert findings(tmp_path, "clean", 0) == "[]"
    collect(tmp_path, "apart", PROGRAM.replace(*APART), 5)
    assert "Gradients of replicas differ between ranks" in findings(tmp_path, "apart", 3)
    collect(tmp_path, "shard", PROGRAM.replace(*SAME_SHARD).replace("sampler.set_epoch(epoch)", ""), 6)
    assert "Ranks train on the same batch" in findings(tmp_path, "shard", 3)
