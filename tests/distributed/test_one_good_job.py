"""Two ranks and the book of one good run of another program: errors that general rules see are found."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import warm_commands
from rank_jobs import rank_starter
from shared_artifacts import made_once

GOOD = """
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def train(model, loader, sampler, optimizer):
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for x, y in loader:
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    x = torch.randn(256, 4)
    data = TensorDataset(x, x.sum(1, keepdim=True))
    sampler = DistributedSampler(data)
    inner = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    model = DistributedDataParallel(inner)
    train(model, DataLoader(data, batch_size=8, sampler=sampler), sampler, torch.optim.SGD(model.parameters(), lr=0.05))
    dist.barrier()
    dist.destroy_process_group()


main()
"""

OTHER = """
import torch
from torch import nn
from torch import distributed


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(20, 6)
        self.head = nn.Linear(6, 3)

    def forward(self, words):
        return self.head(self.embed(words).mean(1))


distributed.init_process_group("gloo")
torch.manual_seed(4)
plain = Classifier()
wrapped = nn.parallel.DistributedDataParallel(plain)
torch.manual_seed(100 + distributed.get_rank())
adam = torch.optim.Adam(wrapped.parameters(), lr=0.01)
for number in range(24):
    words = torch.randint(0, 20, (12, 5))
    CLEAR
    loss = nn.functional.cross_entropy(CALLED(words), words[:, 0] % 3)
    loss.backward()
    adam.step()
distributed.barrier()
distributed.destroy_process_group()
"""

CLEAR = "adam.zero_grad()"
SCRIPTS = {
    "regress.py": GOOD,
    "classify.py": OTHER.replace("CLEAR", CLEAR).replace("CALLED", "wrapped"),
    "uncleared.py": OTHER.replace("    CLEAR\n", "").replace("CALLED", "wrapped"),
    "inner_called.py": OTHER.replace("CLEAR", CLEAR).replace("CALLED", "plain"),
}


def launch(home: Path, script: str, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "traincheck", *words, "--", *rank_starter(home), script]
    return warm_commands.run(command, cwd=home, timeout=300)


def learn(home: Path) -> None:
    for name, text in SCRIPTS.items():
        (home / name).write_text(text)
    done = launch(home, "regress.py", "collect", "-o", "good")
    assert done.returncode == 0, done.stderr
    infer = [sys.executable, "-m", "traincheck", "infer", "good", "-o", "good.jsonl"]
    warm_commands.run(infer, cwd=home, check=True)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the scripts and the book of one run of one of them."""
    return made_once(tmp_path_factory, "one-good-job", learn)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "code", "diagnosis"),
    [
        ("classify.py", 0, ""),
        ("uncleared.py", 3, "gradients-not-cleared"),
        ("inner_called.py", 3, "differ"),
    ],
)
def test_another_job_is_checked(script: str, code: int, diagnosis: str, home: Path, tmp_path: Path) -> None:
    done = launch(home, script, "run", "--book", "good.jsonl", "-o", str(tmp_path / "run"))
    assert done.returncode == code, done.stderr
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    errors = [finding["diagnosis"] for finding in report["findings"] if finding["severity"] == "error"]
    assert bool(errors) == bool(diagnosis) and any(diagnosis in error for error in errors) == bool(diagnosis), errors
    assert report["counts"]["passed"] > 5
