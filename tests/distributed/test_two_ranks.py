"""Two gloo ranks under torchrun attach on their own, and the job ends as without TrainCheck."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

import warm_commands
from rank_jobs import TORCHRUN, rank_starter
from traincheck.trace.folder import RunFolder

PROGRAM = """
import sys
import time
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

def main(clear):
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    torch.manual_seed(dist.get_rank())
    for _ in range(12):
        x = torch.randn(16, 4)
        loss = (model(x) - x.sum(1, keepdim=True)).pow(2).mean()
        if clear:
            optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    total = sum(float(p.detach().double().sum()) for p in model.parameters())
    print(f"rank {dist.get_rank()} {total:.12f}\\n", end="", flush=True)
    dist.barrier()
    del model, optimizer, loss, x
    dist.destroy_process_group()
    time.sleep(0.5)

main("--dirty" not in sys.argv)
"""


def launch(tmp_path: Path, *words: str, launcher: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
    started = launcher or rank_starter(tmp_path)
    return warm_commands.run([*words, *started, "train.py"], tmp_path, timeout=300)


@pytest.mark.slow
def test_ranks_attach_and_train_as_without(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    plain = launch(tmp_path)
    assert plain.returncode == 0, plain.stderr
    traincheck = [sys.executable, "-m", "traincheck"]
    seen = launch(tmp_path, *traincheck, "collect", "-o", "run", "--", launcher=TORCHRUN)
    assert seen.returncode == 0, seen.stderr
    assert sorted(seen.stdout.splitlines()) == sorted(plain.stdout.splitlines())
    run = RunFolder.open(tmp_path / "run")
    steps = {}
    for _, windows in run.windows():
        for window in windows:
            steps[window.rank, window.process] = max(steps.get((window.rank, window.process), 0), window.step)
    trained = {rank: most for (rank, _), most in steps.items() if most}
    assert trained == {0: 12, 1: 12}

    warm_commands.run([*traincheck, "infer", "run", "-o", "book.jsonl"], tmp_path, check=True)
    checked = launch(tmp_path, *traincheck, "run", "--book", "book.jsonl", "-o", "again", "--")
    assert checked.returncode == 0, checked.stderr
    report = json.loads((tmp_path / "again" / "report.json").read_text())
    assert report["verdict"] == "clean" and report["counts"]["passed"] > 5
