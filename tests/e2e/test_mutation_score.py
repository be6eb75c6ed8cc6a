"""The mutation score by its real command: clean programs rarely raise errors, and classic mistakes are detected.

`make bench-mutants` measures the rates; this test notices if they become much worse.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from torch_version import TORCH

ROOT = Path(__file__).resolve().parents[2]
OPERATORS = (
    "zero-grad-removed",
    "step-removed",
    "step-before-backward",
    "evaluation-mode-for-training",
    "layers-in-plain-list",
    "optimizer-of-one-part",
    "clip-after-step",
    "scheduler-before-optimizer",
    "softmax-before-cross-entropy",
    "dropout-without-mode",
)

FRAMEWORKS = ("lightning", "hf_trainer", "accelerate")
"""Loops of libraries that take seconds to import; each program runs four times."""
SLOW_PROGRAMS = ("pipeline", "sac", "td3", "moco", "packed_sequences", "reinforce")
"""They take several times as long as others."""


@pytest.mark.slow
@pytest.mark.skipif(TORCH < (2, 5), reason="the corpus uses optimizers of torch 2.5")
def test_ten_programs_and_ten_operators(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.mutants", "--programs", "10", "--mutated", "10", "--per-program", "1"]
    command += ["--without", ",".join((*FRAMEWORKS, *SLOW_PROGRAMS))]
    options = ["--own", "0", "--operators", ",".join(OPERATORS), "--folder", str(tmp_path)]
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*command, *options], cwd=ROOT, capture_output=True, text=True, env=environ)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads((tmp_path / "result.json").read_text())
    alarms = result["false alarms"]["packs"]
    assert len(result["untrained"]) <= 1 and alarms["programs"] == 10 - len(result["untrained"]), result["untrained"]
    assert len(alarms["with an error"]) <= 1, alarms
    counted = sum(part["mutants"] for part in result["parts"].values())
    detected = sum(part["packs"]["detected"] for part in result["parts"].values())
    assert counted >= 4, "most mutants are neither equivalent nor broken"
    assert detected >= 1, result["open operators"]
    again = subprocess.run([*command, *options], cwd=ROOT, capture_output=True, text=True, env=environ)
    assert again.returncode == 0 and json.loads((tmp_path / "result.json").read_text())["parts"] == result["parts"]
