"""Tests that ranks find a permanent fault of another rank, and that a third rank names the odd one."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

import warm_commands
from rank_jobs import rank_starter

PROGRAM = """
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from traincheck.sdc.faults.fault import parse_fault
from traincheck.testing.corruption import inject


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    inner = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 4))
    model = DistributedDataParallel(inner)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    torch.manual_seed(dist.get_rank() + 1)

    def train():
        for _ in range(24):
            inputs, labels = torch.randn(8, 16), torch.randint(0, 4, (8,))
            loss = nn.functional.cross_entropy(model(inputs), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            time.sleep(0.05)

    if sys.argv[1:]:
        with inject(inner, optimizer, parse_fault(sys.argv[1])):
            train()
    else:
        train()
    total = sum(parameter.detach().double().sum() for parameter in inner.parameters()).item()
    print(f"SUM {dist.get_rank()} {total}\\n", end="", flush=True)  # in one write: two ranks share the pipe
    dist.barrier()
    del model, inner, optimizer
    dist.destroy_process_group()
    time.sleep(0.5)


main()
"""


def job(folder: Path, ranks: int, *words: str, checked: bool = True) -> tuple[list[str], dict[str, Any]]:
    """Return the lines that the ranks print, sorted, and the report."""
    (folder / "train.py").write_text(PROGRAM)
    launch = [*rank_starter(folder, ranks), "train.py", *words]
    run = ["-m", "traincheck", "run", "--packs", "none", "--verify-every", "8", "--fail-on", "never", "-o", "run", "--"]
    command = [sys.executable, *run, *launch] if checked else launch
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = warm_commands.run(command, cwd=folder, env=environ, timeout=300)
    assert done.returncode == 0, done.stderr
    report = json.loads((folder / "run" / "report.json").read_text()) if checked else {}
    return sorted(line for line in done.stdout.splitlines() if line.startswith("SUM")), report


@pytest.mark.slow
def test_a_lasting_fault_of_one_rank_is_named_by_the_others(tmp_path: Path) -> None:
    _, report = job(tmp_path, 3, "stuck@forward:3,bit=22,to=1,rank=1")
    (finding,) = report["findings"]
    assert finding["diagnosis"] == "ranks-compute-different-results"
    assert finding["ranks"] == [1] and finding["compared"] == 3
    assert "rank 1 computed something else than the others" in finding["observed"]


@pytest.mark.slow
def test_both_differing_ranks_are_named_and_healthy_ranks_are_not(tmp_path: Path) -> None:
    sound, faulty = tmp_path / "sound", tmp_path / "faulty"
    sound.mkdir()
    faulty.mkdir()
    plain, _ = job(sound, 2, checked=False)
    sums, report = job(sound, 2)
    assert sums == plain and len(plain) == 2
    assert report["findings"] == [] and report["not_observed"] == []
    _, report = job(faulty, 2, "stuck@forward:3,bit=22,to=1,rank=1")
    (finding,) = report["findings"]
    assert finding["ranks"] == [0, 1] and finding["compared"] == 2
