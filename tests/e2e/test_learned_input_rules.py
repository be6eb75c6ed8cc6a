"""Tests that a rule about inputs is learned from good runs, and finds a causal mask that is shifted by one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import warm_commands

SOURCE = Path(__file__).resolve().parents[2] / "src"
PROGRAM = """
import hashlib
import sys

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(int(sys.argv[1]))
DIAGONAL = int(sys.argv[2])


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 2, dropout=0.1, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))

    def forward(self, x):
        mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(DIAGONAL)
        x = x + self.attention(x, x, x, attn_mask=mask, need_weights=False)[0]
        return x + self.mlp(x)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.block, self.head = nn.Embedding(11, 16), Block(), nn.Linear(16, 11)

    def forward(self, tokens):
        return self.head(self.block(self.embedding(tokens)))


model = Model()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(8):
    tokens = torch.randint(0, 11, (4, 13))
    loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
state = [*model.state_dict().values(), torch.get_rng_state()]
print("HASH", hashlib.sha256(b"".join(each.numpy().tobytes() for each in state)).hexdigest())
"""
RIGHT, SHIFTED = "1", "2"


def python(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(SOURCE)}
    return warm_commands.run([sys.executable, *words], cwd=folder, env=environ, timeout=300)


def traincheck(folder: Path, *words: str) -> str:
    done = python(folder, "-m", "traincheck", *words)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the program and a book that was learned from three good runs."""
    folder = tmp_path_factory.mktemp("learned")
    (folder / "train.py").write_text(PROGRAM)
    for seed in "123":
        traincheck(folder, "collect", "--verify-every", "2", "-o", seed, "train.py", seed, RIGHT)
    traincheck(folder, "infer", "1", "2", "3", "-o", "book.jsonl")
    return folder


def check(folder: Path, diagonal: str) -> list[dict[str, Any]]:
    """Return the findings of a run of the program with another seed."""
    options = ("--verify-every", "2", "--packs", "none", "--book", "book.jsonl", "--fail-on", "never")
    traincheck(folder, "run", *options, "-o", f"checked{diagonal}", "train.py", "4", diagonal)
    findings: list[dict[str, Any]] = json.loads((folder / f"checked{diagonal}" / "report.json").read_text())["findings"]
    return findings


@pytest.mark.slow
def test_a_shifted_mask_is_found(learned: Path) -> None:
    finding = check(learned, SHIFTED)[0]
    assert (finding["diagnosis"], finding["severity"]) == ("target-is-not-the-next-token", "error")
    assert finding["variables"] == ["Model.block.attention"]
    assert finding["observed"].startswith("in step 2, the target of an output is the token 1 after its position")
    rules = [json.loads(line) for line in (learned / "book.jsonl").read_text().splitlines()[1:]]
    learned_rule = next(rule["id"] for rule in rules if "computation.later_tokens" in json.dumps(rule))
    assert learned_rule in finding["invariants"]


@pytest.mark.slow
def test_another_good_run_is_clean(learned: Path) -> None:
    assert check(learned, RIGHT) == []


@pytest.mark.slow
def test_the_training_is_the_same_to_the_last_bit(learned: Path) -> None:
    alone = python(learned, "train.py", "4", RIGHT).stdout
    options = ("--verify-every", "1", "--packs", "none", "-o", "observed")
    assert "HASH" in alone and traincheck(learned, "run", *options, "train.py", "4", RIGHT) == alone
