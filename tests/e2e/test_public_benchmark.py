"""The benchmark of public programs runs a program of a clone, plain and under the real command, and judges it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.public.programs import Edit, Expected, Program
from benchmarks.public.running import measure
from benchmarks.public.verdicts import CLEAN, FALSE, TRUE, unexplained, verdict

ROOT = Path(__file__).resolve().parents[2]
TRAIN = """import time
import torch

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(900):
    loss = (model(torch.randn(4, 8)) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.6f} time {time.perf_counter():.3f}")
"""
DIAGNOSIS = "gradients-not-cleared"


@pytest.fixture
def program(tmp_path: Path) -> Program:
    """A program of fewer steps than its file has, in a clone of owner/name."""
    home = tmp_path / "src" / "owner" / "name"
    home.mkdir(parents=True)
    (home / "train.py").write_text(TRAIN)
    git = ["git", "-C", str(home), "-c", "user.name=us", "-c", "user.email=us@example.org"]
    for words in (["init", "--quiet"], ["add", "."], ["commit", "--quiet", "-m", "first"]):
        subprocess.run([*git, *words], check=True)
    commit = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    shorter = Edit("train.py", "range(900)", "range(12)")
    return Program("one", "owner/name", commit, ("basics",), command=("train.py",), edits=(shorter,), steps=12)


@pytest.mark.slow
def test_a_sound_program_is_clean_and_compared_as_a_whole(program: Program, tmp_path: Path) -> None:
    figures = measure(program, tmp_path / "src" / program.repository, tmp_path / "scratch")
    assert verdict(program, figures) == CLEAN
    assert figures["steps"] == 12
    assert (figures["output"]["compared"], figures["output"]["lines"]) == (12, 12)
    assert figures["seconds_plain"] > 0 and figures["megabytes_plain"] > 0


@pytest.mark.slow
def test_a_finding_is_true_only_where_the_list_explains_it(program: Program, tmp_path: Path) -> None:
    broken = Edit("train.py", "optimizer.zero_grad()", "pass")
    defect = Program(**{**vars(program), "edits": (*program.edits, broken)})
    figures = measure(defect, tmp_path / "src" / program.repository, tmp_path / "scratch")
    assert figures["exit_observed"] == 0, "findings leave the exit code of the program as it is"
    assert verdict(defect, figures) == FALSE
    assert [finding["diagnosis"] for finding in unexplained(defect, figures)] == [DIAGNOSIS]
    explanation = Expected(
        DIAGNOSIS, "train.py:10", "the edit takes the only call of zero_grad away, so that gradients add up"
    )
    assert verdict(Program(**{**vars(defect), "expected": (explanation,)}), figures) == TRUE


def test_the_command_lists_programs_and_missing_packages(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "benchmarks.public"]
    listed = subprocess.run([*words, "--list"], cwd=ROOT, check=True, capture_output=True, text=True)
    assert "nanogpt-shakespeare-char" in listed.stdout
    unnamed = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    assert unnamed.returncode == 1 and "name the folder of checkouts" in unnamed.stderr
    unknown = subprocess.run([*words, "--list", "--only", "nothing"], cwd=ROOT, capture_output=True, text=True)
    assert unknown.returncode == 1 and "no program has this id, tag or repository" in unknown.stderr
