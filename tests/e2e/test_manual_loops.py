"""The commands handle loops without an optimizer and loops that update nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import warm_commands

PROGRAM = Path(__file__).with_name("programs") / "hand_loop.py"
SOURCE = Path(__file__).resolve().parents[2] / "src"


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(SOURCE)}
    return warm_commands.run(words, cwd=folder, env=environ, timeout=300)


def traincheck(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return run(folder, sys.executable, "-m", "traincheck", *words)


def checked(folder: Path, way: str, rounds: int, *options: str, pause: float = 0.0) -> tuple[int, dict[str, Any], str]:
    """The exit code of `traincheck run`, its report, and what it printed. A step takes `pause` seconds or more."""
    done = traincheck(folder, "run", "-o", "run", *options, str(PROGRAM), way, str(rounds), str(pause))
    return done.returncode, json.loads((folder / "run" / "report.json").read_text()), done.stdout + done.stderr


def diagnoses(report: dict[str, Any]) -> list[tuple[str, str]]:
    return [(finding["severity"], finding["diagnosis"]) for finding in report["findings"]]


@pytest.mark.parametrize(("way", "steps"), [("data", 24), ("no_grad", 24), ("accumulated", 6)])
def test_each_update_by_hand_is_a_step_and_computes_the_same(tmp_path: Path, way: str, steps: int) -> None:
    code, report, output = checked(tmp_path, way, 24)
    assert code == 0, output
    assert report["findings"] == []
    assert report["counts"]["steps"] == steps
    assert f"Nothing wrong found in {steps} steps" in output
    plain = run(tmp_path, sys.executable, str(PROGRAM), way, "24")
    assert plain.returncode == 0 and plain.stdout and plain.stdout in output


def test_gradients_that_are_not_cleared_are_found_without_an_optimizer(tmp_path: Path) -> None:
    code, report, output = checked(tmp_path, "not_cleared", 24)
    assert code == 3, output
    assert diagnoses(report) == [("error", "gradients-not-cleared")]
    assert report["findings"][0]["step"] == 2
    assert report["findings"][0]["site"]["file"].endswith("hand_loop.py")


def test_a_loop_without_an_optimizer_is_stopped_before_its_next_update(tmp_path: Path) -> None:
    code, report, output = checked(tmp_path, "not_cleared", 200, "--on-violation", "stop", pause=0.1)
    assert code == 3, output
    assert diagnoses(report) == [("error", "gradients-not-cleared")]
    assert report["counts"]["steps"] < 10
    assert "StopTraining" in output


def test_an_optimizer_that_never_steps_is_an_error(tmp_path: Path) -> None:
    code, report, output = checked(tmp_path, "built", 12)
    assert code == 3, output
    assert diagnoses(report) == [("error", "gradients-never-used")]
    assert "12 backwards ran" in report["findings"][0]["observed"] and "SGD" in report["findings"][0]["observed"]
    assert report["findings"][0]["site"]["file"].endswith("hand_loop.py")
    assert report["counts"]["steps"] == 0


def test_a_loop_that_updates_nothing_is_no_pass(tmp_path: Path) -> None:
    code, report, output = checked(tmp_path, "nothing", 12)
    assert code == 2, output
    assert diagnoses(report) == [("notice", "gradients-never-used")]
    sentence = "no training step was recognised: 12 backwards and 12 calls of a model were seen, but no update"
    assert sentence in report["run"]["untrained"] and any(sentence in reason for reason in report["not_observed"])
    assert "traincheck.step()" in report["run"]["untrained"]


def test_a_program_that_only_predicts_is_no_pass(tmp_path: Path) -> None:
    code, report, output = checked(tmp_path, "predicts", 12)
    assert code == 2, output
    assert report["findings"] == [] and report["counts"]["steps"] == 0
    assert "no training step was recognised: 12 calls of a model and no backward was seen" in output
    assert traincheck(tmp_path, "report", "run").returncode == 2
    assert traincheck(tmp_path, "run", "--fail-on", "never", str(PROGRAM), "predicts", "1").returncode == 0


def test_a_recording_without_a_step_is_no_pass(tmp_path: Path) -> None:
    assert traincheck(tmp_path, "collect", "-o", "full", str(PROGRAM), "predicts", "3").returncode == 0
    done = traincheck(tmp_path, "check", "full")
    assert done.returncode == 2
    assert "no training step was recognised: 3 calls of a model" in done.stdout
    accepted = traincheck(tmp_path, "accept", "full")
    assert accepted.returncode == 2
    assert "no training step was recognised" in accepted.stderr and "--reason" in accepted.stderr
    assert traincheck(tmp_path, "collect", "-o", "built", str(PROGRAM), "built", "12").returncode == 0
    assert traincheck(tmp_path, "check", "built").returncode == 3


def test_a_program_without_torch_is_no_pass(tmp_path: Path) -> None:
    (tmp_path / "prepare.py").write_text("print('no training here')\n")
    done = traincheck(tmp_path, "run", "prepare.py")
    assert done.returncode == 2
    assert "nothing was observed" in done.stderr


def test_the_exit_code_of_the_program_comes_first(tmp_path: Path) -> None:
    code, report, _ = checked(tmp_path, "leaves", 3)
    assert code == 7
    assert report["run"]["untrained"]


def test_a_loss_over_a_single_class_is_an_error(tmp_path: Path) -> None:
    code, report, output = checked(tmp_path, "one_class", 12)
    assert code == 3, output
    assert ("error", "all-gradients-zero") in diagnoses(report)
    finding = next(entry for entry in report["findings"] if entry["diagnosis"] == "all-gradients-zero")
    assert finding["step"] == 10 and "Tagger.head.weight" in finding["variables"]
