"""The size of updates, with the real commands: learn from three good runs, then check others of the program."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import warm_commands
from shared_artifacts import made_once

SCRIPT = """
import argparse

import torch
import torch.nn.functional as F
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--batch-size", type=int, default=32)
parser.add_argument("--steps", type=int, default=20)
parser.add_argument("--weight", type=float, default=1.0)
options = parser.parse_args()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter = nn.Linear(16, 64)
        self.leave = nn.Linear(64, 4)

    def forward(self, x):
        return self.leave(F.relu(self.enter(x)))


torch.manual_seed(options.seed)
net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
for step in range(options.steps):
    x = torch.randn(options.batch_size, 16)
    optimizer.zero_grad()
    loss = options.weight * F.cross_entropy(net(x), x[:, :4].argmax(1))
    loss.backward()
    optimizer.step()
"""

SLUG = "magnitudes-differ-from-good-runs"


def traincheck(home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return warm_commands.run(
        [sys.executable, "-m", "traincheck", *words],
        cwd=home,
        timeout=300,
        env={**os.environ, "COLUMNS": "200", "OMP_NUM_THREADS": "1"},
    )


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the script, and a book of three good runs."""

    def learn(home: Path) -> None:
        (home / "train.py").write_text(SCRIPT)
        for seed in ("1", "2", "3"):
            collected = traincheck(home, "collect", "-o", f"run{seed}", "train.py", "--seed", seed)
            assert collected.returncode == 0, collected.stderr
        learned = traincheck(home, "infer", "run1", "run2", "run3", "-o", "book.jsonl")
        assert learned.returncode == 0, learned.stderr

    return made_once(tmp_path_factory, "magnitudes", learn)


@pytest.fixture
def check(home: Path, tmp_path: Path) -> Callable[..., tuple[int, list[dict[str, object]]]]:
    def run(*words: str) -> tuple[int, list[dict[str, object]]]:
        report = tmp_path / "report.json"
        command = ("run", "--book", "book.jsonl", "--report", f"json={report}", "-o", str(tmp_path / "checked"))
        checked = traincheck(home, *command, "train.py", "--seed", "9", *words)
        assert report.exists(), checked.stderr
        return checked.returncode, json.loads(report.read_text())["findings"]

    return run


@pytest.mark.parametrize("words", [("--batch-size", "16"), ("--batch-size", "80", "--steps", "30")])
def test_another_batch_size_and_length_are_clean(
    words: tuple[str, ...], home: Path, check: Callable[..., tuple[int, list[dict[str, list[str]]]]]
) -> None:
    rules = [json.loads(line) for line in (home / "book.jsonl").read_text().splitlines()[1:]]
    about_sizes = {rule["id"] for rule in rules if rule["subject"]["api"] == "model.magnitudes"}
    code, findings = check(*words)
    assert code == 0
    assert about_sizes and about_sizes.isdisjoint(name for finding in findings for name in finding["invariants"])


@pytest.mark.parametrize("weight", ["1e4", "1e-4"])
def test_a_loss_of_another_size_is_an_error(
    weight: str, check: Callable[..., tuple[int, list[dict[str, str]]]]
) -> None:
    code, findings = check("--weight", weight)
    assert code != 0
    (finding,) = [finding for finding in findings if finding["diagnosis"] == SLUG and finding["severity"] == "error"]
    assert "in 3 updates in a row" in finding["expected"]
    assert finding["observed"].startswith("here ") and "; in good runs 1/" in finding["observed"]
