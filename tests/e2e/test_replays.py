"""Tests `traincheck run --verify-every`: it finds corruption, accepts a sound run, and leaves training unchanged."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import warm_commands
from torch_version import TORCH

SOURCE = Path(__file__).resolve().parents[2] / "src"
PROGRAM = """
import hashlib
import sys

import torch
from torch import nn

from traincheck.sdc.faults.fault import parse_fault
from traincheck.testing.corruption import inject

CALLS = []


class Late(nn.Module):
    def forward(self, x):
        if sys.argv[1:] != ["calls"] or step < 12:
            return x
        CALLS.append(0)  # a replay does not restore what is no part of the model
        return x + 1e-3 * len(CALLS)


torch.manual_seed(0)
layers = nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(0.2), nn.Flatten(), nn.Linear(288, 10), Late()
model = nn.Sequential(*layers)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100)


def train(steps):
    global step
    for step in range(steps):
        inputs, labels = torch.randn(16, 1, 8, 8), torch.randint(0, 10, (16,))
        loss = nn.functional.cross_entropy(model(inputs), labels)
        if sys.argv[1:] == ["decay"] and step >= 12:
            loss = loss + 1e-3 * model[0].weight.square().sum()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()


if "@" in sys.argv[-1]:
    with inject(model, optimizer, parse_fault(sys.argv[-1])):
        train(24)
else:
    train(24)
state = [*model.state_dict().values(), torch.get_rng_state()]
print("HASH", hashlib.sha256(b"".join(each.numpy().tobytes() for each in state)).hexdigest())
"""


ONCE, EACH_TIME = "computation-wrong-once", "device-computes-differently-each-time"


def run(folder: Path, *words: str, program: str = PROGRAM) -> subprocess.CompletedProcess[str]:
    (folder / "train.py").write_text(program)
    environ = {**os.environ, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"}
    return warm_commands.run([sys.executable, *words], cwd=folder, env=environ)


def replayed(
    folder: Path, *arguments: str, program: str = PROGRAM
) -> tuple[subprocess.CompletedProcess[str], dict[str, Any]]:
    command = ["-m", "traincheck", "run", "--packs", "none", "--verify-every", "5", "-o", "run", "train.py"]
    done = run(folder, *command, *arguments, program=program)
    return done, json.loads((folder / "run" / "report.json").read_text())


@pytest.mark.slow
def test_a_sound_run_is_silent_and_trains_as_without(tmp_path: Path) -> None:
    plain = run(tmp_path, "train.py")
    done, report = replayed(tmp_path)
    assert done.returncode == 0 and report["findings"] == [] and "HASH" in plain.stdout, done.stderr
    assert done.stdout == plain.stdout
    assert "9 checked (9 passed" in done.stderr, "rules about replays, the update, the gradient, and mixed samples"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "diagnosis", "part"),
    [
        ("bitflip@forward:0,bit=22,first=15,last=15,chance=0.5,seed=6", ONCE, "forward"),
        pytest.param(
            "bitflip@gradient:5.weight,bit=20,first=15,last=15", EACH_TIME, "backward", marks=pytest.mark.long
        ),
        ("bitflip@optimizer:0.weight,bit=0,first=15,last=15", ONCE, "update"),
        pytest.param("intermittent@forward:0,first=15,last=15,seed=6", ONCE, "forward", marks=pytest.mark.long),
        ("intermittent@forward:0,first=15,last=15,seed=5", EACH_TIME, "forward"),
    ],
)
def test_a_fault_in_one_step_is_found_in_the_next(tmp_path: Path, fault: str, diagnosis: str, part: str) -> None:
    done, report = replayed(tmp_path, fault)
    assert done.returncode == 3, done.stderr
    (finding,) = report["findings"]
    assert finding["diagnosis"] == diagnosis and finding["severity"] == "error"
    assert "step 15" in done.stderr.replace("\n", " ") and finding["step"] == 16
    assert f"{part} of" in finding["observed"]


@pytest.mark.slow
def test_a_compiled_model_is_executed_as_compiled(tmp_path: Path) -> None:
    compiled = 'model = torch.compile(model, backend="inductor")\noptimizer ='
    program = PROGRAM.replace("optimizer =", compiled, 1).replace("*model.state", "*model._orig_mod.state")
    program += 'print("GRAPHS", torch._dynamo.utils.counters["stats"]["unique_graphs"])\n'
    plain = run(tmp_path, "train.py", program=program)
    done, report = replayed(tmp_path, program=program)
    assert done.returncode == 0 and done.stdout == plain.stdout and "GRAPHS 1" in plain.stdout, done.stderr
    missed = [reason for reason in report["not_observed"] if "replays" in reason]
    # Before torch 2.12, the result is unknown, so no replay follows its gradient.
    assert report["findings"] == [] and bool(missed) is (TORCH < (2, 12))


@pytest.mark.slow
def test_a_model_that_stops_repeating_is_no_broken_device(tmp_path: Path) -> None:
    done, report = replayed(tmp_path, "calls")
    assert done.returncode == 0, done.stderr
    (finding,) = report["findings"]
    assert finding["severity"] == "notice" and finding["diagnosis"] == "computation-stopped-repeating"


@pytest.mark.slow
def test_a_loss_that_changes_is_repeated(tmp_path: Path) -> None:
    done, report = replayed(tmp_path, "decay")
    assert done.returncode == 0, done.stderr
    assert report["findings"] == []


def test_invalid_values_are_rejected(tmp_path: Path) -> None:
    for value in ("-1", "often"):
        done = run(tmp_path, "-m", "traincheck", "run", "--verify-every", value, "train.py")
        assert done.returncode == 2 and "--verify-every" in done.stderr and value in done.stderr
