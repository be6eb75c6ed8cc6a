"""Jobs of two gloo ranks: a program that trains with DistributedDataParallel, and how it is recorded and checked."""

from __future__ import annotations

import json
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import warm_commands
from traincheck.trace.reader import count_windows
from warm_commands import WarmProcess, server_address

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

SLOWLY = ("optimizer.step()", "optimizer.step(); time.sleep(0.2)")
"""Slow enough to be met under way."""

WITHOUT_DDP = ("loss = (model(batch)", "loss = (inner(batch)")
"""The forward goes through the inner module, so that gradients are never reduced."""


def traincheck(home: Path, *words: str, expect: int = 0) -> str:
    """Return the output of the command."""
    command = [sys.executable, "-m", "traincheck", *words]
    done = warm_commands.run(command, cwd=home, timeout=300)
    assert done.returncode == expect, done.stderr
    return done.stdout


TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")

RANKS = """#!/bin/bash
export WORLD_SIZE={ranks} LOCAL_WORLD_SIZE={ranks} MASTER_ADDR=127.0.0.1 MASTER_PORT={port}
for ((rank = 0; rank < {ranks}; rank++)); do
    RANK=$rank LOCAL_RANK=$rank {python} "$@" &
done
for ((rank = 0; rank < {ranks}; rank++)); do
    wait -n || {{ code=$?; kill $(jobs -p) 2> /dev/null; wait; exit $code; }}
done
"""


WARM_RANKS = """#!{python} -IS
import os, sys, time
sys.path.insert(0, {tests!r})
from warm_commands import WarmProcess

WarmProcess.address = {address!r}
job = {{"WORLD_SIZE": "{ranks}", "LOCAL_WORLD_SIZE": "{ranks}", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "{port}"}}
running = []
for rank in range({ranks}):
    environ = {{**os.environ, **job, "RANK": str(rank), "LOCAL_RANK": str(rank)}}
    running.append(WarmProcess([{python!r}, *sys.argv[1:]], env=environ))
while running:
    time.sleep(0.02)
    for process in [process for process in running if process.poll() is not None]:
        running.remove(process)
        if process.returncode:
            for other in running:
                other.terminate()
            for other in running:
                other.wait()
            sys.exit(process.returncode if process.returncode > 0 else 128 - process.returncode)
"""
"""The same with forks of the server of tests/warm_commands.py."""


def rank_starter(home: Path, ranks: int = 2) -> tuple[str, ...]:
    """The start of a command that runs a script on several ranks, without the seconds that TORCHRUN itself takes.

    Use it where a test is not about the launcher. Rules go by the command's first word and script, so it is a script
    with the name of the interpreter: books of its runs also hold for TORCHRUN. Each call names a new port.
    """
    script = home / "ranks" / Path(sys.executable).name
    script.parent.mkdir(exist_ok=True)
    values = {"ranks": ranks, "port": free_port(), "python": sys.executable}
    if WarmProcess.cold:
        script.write_text(RANKS.format(**values))
    else:
        script.write_text(WARM_RANKS.format(**values, tests=str(Path(__file__).parent), address=server_address()))
    script.chmod(0o755)
    return (str(script),)


def collect(home: Path, folder: str, text: str, seed: int) -> None:
    (home / "train.py").write_text(text)
    traincheck(home, "collect", "-o", folder, "--", *rank_starter(home), "train.py", str(seed))


def run(
    home: Path, folder: str, text: str, *words: str, expect: int = 0, launcher: Sequence[str] = ()
) -> dict[str, Any]:
    """The report of a run that is checked while it trains. Without a `launcher`, `rank_starter` starts the ranks."""
    (home / "train.py").write_text(text)
    started = launcher or rank_starter(home)
    command = ["run", "--book", "book.jsonl", "-o", folder, *words, "--", *started, "train.py", "7"]
    traincheck(home, *command, expect=expect)
    report: dict[str, Any] = json.loads((home / folder / "report.json").read_text())
    return report


def learn(home: Path) -> None:
    """Put a book of three good runs into `home`."""
    for seed in (1, 2, 3):
        collect(home, f"good{seed}", PROGRAM, seed)
    traincheck(home, "infer", "good1", "good2", "good3", "-o", "book.jsonl")


def process_of_rank(folder: Path, rank: int) -> int:
    """The process that trains on a rank, once it has written some steps."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        for file in folder.glob(f"events-{rank}-*.arrows"):
            if count_windows(file) > 4:
                return int(file.stem.rsplit("-", 1)[1])
        time.sleep(0.1)
    raise AssertionError("no rank has begun to train")


def free_port() -> int:
    """Return a free port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    return port
