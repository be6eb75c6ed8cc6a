"""If the comparing rank is lost, another rank of the job takes over, and the report names the steps between."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rank_jobs import free_port

RANKS = 3

PROGRAM = """
import gc
import os
import signal
import sys
import time
import torch
import torch.distributed as dist

def lose_sockets():
    from traincheck.runtime.ranks.rank_server import RankServer
    (server,) = [held for held in gc.get_objects() if type(held) is RankServer]
    for connection in server._connections():
        connection.abort()

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def main(seed):
    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo", init_method=f"file://{os.environ['STORE']}", rank=rank, world_size=3)
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    is_dying = os.environ["LOSS"] == "die"
    for step in range(1, 201 if is_dying else 121):
        if rank == 0 and step == 20:
            die() if is_dying else lose_sockets()
        batch = torch.randn(8, 4)
        optimizer.zero_grad()
        loss = (model(batch) - 1).pow(2).mean()
        loss.backward()
        optimizer.step()
        time.sleep(0.04)
    time.sleep(0.5) if is_dying else dist.barrier()
    del model, optimizer, loss, batch
    dist.destroy_process_group()
    time.sleep(0.5)

main(int(sys.argv[1]))
"""


def run_ranks(home: Path, loss: str) -> list[dict[str, Any]]:
    """The reports of three commands that each start one rank, as on three hosts."""
    (home / "train.py").write_text(PROGRAM)
    common = {**os.environ, "WORLD_SIZE": str(RANKS), "STORE": str(home / f"store-{loss}"), "LOSS": loss}
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    commands = []
    for rank in range(RANKS):
        ours = ["run", "--book", "book.jsonl", "-o", f"{loss}{rank}", "--", sys.executable, "train.py", "7"]
        environ = {**common, **address, "RANK": str(rank), "LOCAL_RANK": "0"}
        commands.append(
            subprocess.Popen(
                [sys.executable, "-m", "traincheck", *ours], cwd=home, env=environ, stderr=subprocess.PIPE, text=True
            )
        )
    stderr = [command.communicate(timeout=120)[1] for command in commands]
    assert all("Traceback" not in text for text in stderr), stderr
    return [json.loads((home / f"{loss}{rank}" / "report.json").read_text()) for rank in range(RANKS)]


BATCHES = "Ranks train on the same batch"


def summaries(report: dict[str, Any]) -> list[tuple[str, list[int]]]:
    return [(finding["title"], finding["ranks"]) for finding in report["findings"]]


def steps_between(reason: str) -> tuple[int, int]:
    """The first and the last step that were not compared, according to the report."""
    pattern = r"ranks were not compared from step (\d+) to step (\d+): rank 0, which compared them, was lost"
    found = re.fullmatch(pattern, reason)
    assert found, reason
    return int(found[1]), int(found[2])


@pytest.mark.long
@pytest.mark.slow
def test_the_next_rank_takes_over_if_connections_break(home: Path) -> None:
    first, second, third = run_ranks(home, "lose_sockets")
    assert summaries(first) == summaries(second) == [(BATCHES, [0, 1, 2])] and third["findings"] == []
    (until,) = first["not_observed"]
    last = int(re.fullmatch(r"ranks were compared up to step (\d+) only: rank 1 compares them since", until)[1])  # type: ignore[index]
    from_step, to_step = steps_between(*second["not_observed"])
    assert last + 1 == from_step <= to_step < second["findings"][0]["step"]
    assert [(rank["rank"], rank["compared"]) for rank in second["ranks"]] == [(0, 120), (1, 120), (2, 120)]
    assert third["not_observed"] == [
        "rank 0, or a rank that took over from it, compares the ranks of this job: look for findings about several "
        "ranks in the run folder of that rank"
    ]


@pytest.mark.slow
def test_the_next_rank_takes_over_from_a_killed_one(home: Path) -> None:
    killed, second, third = run_ranks(home, "die")
    assert killed["ranks"][0]["end"] == "killed"
    assert summaries(second) == [(BATCHES, [1, 2])] and third["findings"] == []
    absent, gap = second["not_observed"]
    from_step, to_step = steps_between(gap)
    assert from_step <= to_step < second["findings"][0]["step"]
    assert absent == f"rank 0 took no part in the comparison from step {to_step + 1} on"
    assert [rank["compared"] for rank in second["ranks"]][1:] == [200, 200]
