"""Two gloo ranks in one run folder: what is learned of ranks together, and what shows when they go apart."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from traincheck.trace.folder import RunFolder
from traincheck.trace.reader import count_windows

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


TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


def collect(home: Path, folder: str, text: str, seed: int) -> None:
    (home / "train.py").write_text(text)
    traincheck(home, "collect", "-o", folder, "--", *TORCHRUN, "train.py", str(seed))


def findings(home: Path, folder: str, expect: int) -> str:
    """All that the check of a folder found, in one text."""
    traincheck(home, "check", folder, "--book", "book.jsonl", "--json", f"{folder}.json", expect=expect)
    return json.dumps(json.loads((home / f"{folder}.json").read_text())["findings"])


def run(home: Path, folder: str, text: str, *words: str, expect: int = 0) -> dict[str, Any]:
    """The report of a run that is checked while it trains."""
    (home / "train.py").write_text(text)
    command = ["run", "--book", "book.jsonl", "-o", folder, *words, "--", *TORCHRUN, "train.py", "7"]
    traincheck(home, *command, expect=expect)
    report: dict[str, Any] = json.loads((home / folder / "report.json").read_text())
    return report


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a book of three good runs."""
    found = tmp_path_factory.mktemp("ranks")
    for seed in (1, 2, 3):
        collect(found, f"good{seed}", PROGRAM, seed)
    traincheck(found, "infer", "good1", "good2", "good3", "-o", "book.jsonl")
    return found


@pytest.mark.slow
def test_ranks_that_go_apart_are_told(home: Path) -> None:
    collect(home, "clean", PROGRAM, 4)
    assert findings(home, "clean", 0) == "[]"
    collect(home, "apart", PROGRAM.replace(*APART), 5)
    assert "Gradients of replicas differ between ranks" in findings(home, "apart", 3)
    collect(home, "shard", PROGRAM.replace(*SAME_SHARD).replace("sampler.set_epoch(epoch)", ""), 6)
    assert "Ranks train on the same batch" in findings(home, "shard", 3)


@pytest.mark.slow
def test_ranks_that_go_apart_are_told_while_they_train(home: Path) -> None:
    clean = run(home, "live-clean", PROGRAM)
    assert clean["verdict"] == "clean" and not clean["not_observed"]
    apart = run(home, "live-apart", PROGRAM.replace(*APART), expect=3)
    (error,) = [finding for finding in apart["findings"] if finding["severity"] == "error"]
    assert error["title"] == "Gradients of replicas differ between ranks" and error["step"] == 1
    assert any(name.endswith("0.weight") for name in error["variables"])


SLOWLY = ("optimizer.step()", "optimizer.step(); time.sleep(0.2)")


@pytest.mark.slow
def test_ranks_that_go_apart_are_stopped(home: Path) -> None:
    stopped = run(home, "stopped", PROGRAM.replace(*APART).replace(*SLOWLY), "--on-violation", "stop", expect=3)
    assert 1 <= stopped["counts"]["steps"] < 24
    assert json.loads((home / "stopped" / "run.json").read_text())["stopped_by_us"] is True


@pytest.mark.slow
def test_a_rank_that_is_killed_ends_the_job_as_it_would_without_us(home: Path) -> None:
    (home / "train.py").write_text(PROGRAM.replace(*SLOWLY))
    command = [sys.executable, "-m", "traincheck", "run", "--book", "book.jsonl", "-o", "killed", "--", *TORCHRUN]
    running = subprocess.Popen([*command, "train.py", "7"], cwd=home, stderr=subprocess.PIPE, text=True)
    try:
        victim = _process_of_rank(home / "killed", 1)
        os.kill(victim, signal.SIGKILL)
        _, said = running.communicate(timeout=120)
    finally:
        running.kill()
    assert running.returncode == 1, said
    report = json.loads((home / "killed" / "report.json").read_text())
    assert report["verdict"] == "clean" and 1 <= report["counts"]["steps"] < 24
    assert "Traceback" not in said.replace("ChildFailedError", "").split("TrainCheck")[-1]


def _process_of_rank(folder: Path, rank: int) -> int:
    """The process that trains on a rank, once it has written some steps."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        for file in folder.glob(f"events-{rank}-*.arrows"):
            if count_windows(file) > 4:
                return int(file.stem.rsplit("-", 1)[1])
        time.sleep(0.1)
    raise AssertionError("no rank has begun to train")


SPAWNED = PROGRAM.replace('dist.init_process_group("gloo")', 'dist.init_process_group("gloo", rank=rank, world_size=2)')
SPAWNED = SPAWNED.replace("def main(seed):", "def main(rank, seed):").replace(
    "main(int(sys.argv[1]))",
    """
if __name__ == "__main__":
    import os
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=sys.argv[2])
    torch.multiprocessing.spawn(main, (int(sys.argv[1]),), nprocs=2)
""",
)


@pytest.mark.slow
def test_ranks_that_a_program_starts_by_itself_are_known(home: Path) -> None:
    apart = home / "spawned"
    apart.mkdir()
    (apart / "train.py").write_text(SPAWNED.replace(*APART))  # rules of one program go by its name
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    traincheck(apart, "collect", "-o", "run", "--", sys.executable, "train.py", "5", str(port))
    (job,) = RunFolder.open(apart / "run").jobs()
    assert job.size == 2 and sorted(job.files) == [0, 1]
    traincheck(apart, "check", "run", "--book", str(home / "book.jsonl"), "--json", "check.json", expect=3)
    assert "Gradients of replicas differ between ranks" in (apart / "check.json").read_text()
