"""The main job with the real command: learn from good scripts, catch the error in another, keep quiet on clean ones."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import warm_commands
from shared_artifacts import made_once
from torch_version import TORCH

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
LEARNED_FROM = {
    "digits_cnn": ("--epochs", "3"),
    "small_gpt": (),
    "lstm_tbptt": ("--epochs", "2"),
    "gan": (),
    "grad_accum_bf16": ("--epochs", "3"),
}
"""The good scripts, each with arguments that keep it short."""

pytestmark = pytest.mark.slow


def traincheck(*words: object) -> subprocess.CompletedProcess[str]:
    """Run the command as a user does."""
    command = [sys.executable, "-m", "traincheck", *map(str, words)]
    return warm_commands.run(command, cwd=ROOT, env={**os.environ, "COLUMNS": "100"})


@pytest.fixture(scope="session")
def book(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A book learned from a few examples."""
    return made_once(tmp_path_factory, "learned", learn) / "good.jsonl"


def learn(folder: Path) -> None:
    for name, args in LEARNED_FROM.items():
        done = traincheck("collect", "-o", folder / name, EXAMPLES / f"{name}.py", *args)
        assert done.returncode == 0, done.stderr
    done = traincheck("infer", *(folder / name for name in LEARNED_FROM), "-o", folder / "good.jsonl")
    assert done.returncode == 0, done.stderr


def run(script: Path, book: Path, folder: Path, *words: str) -> tuple[int, dict[str, object]]:
    """Exit code and report of a run that is checked live."""
    done = traincheck("run", "--book", book, "-o", folder, *words, script)
    report = json.loads((folder / "report.json").read_text())
    return done.returncode, report


BUGGY = {
    "frozen_head": ("optimizer-changes-nothing", ".fc."),
    "missing_zero_grad": ("gradients-not-cleared", "weight"),
    "stale_optimizer": ("optimizer-changes-nothing", "TextCNN"),
    "eval_never_left": ("training-in-evaluation-mode", "weight"),
}
"""For each buggy script: the diagnosis of the leading finding, and a part of the expected variable name."""

FIRST_BAD_STEP = {"missing_zero_grad": 2, "stale_optimizer": 1}
"""The steps in which an effect first exists, where it is the same for every configuration."""


def buggy_run(name: str, book: Path, factory: pytest.TempPathFactory) -> Path:
    """A run folder of this buggy script, every step of which was checked and recorded."""

    def make(folder: Path) -> None:
        code, _ = run(EXAMPLES / "buggy" / f"{name}.py", book, folder / "run", "--record", "all")
        assert code == 3

    return made_once(factory, name, make) / "run"


@pytest.mark.parametrize("name", BUGGY)
def test_error_is_caught_and_named(name: str, book: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    report = json.loads((buggy_run(name, book, tmp_path_factory) / "report.json").read_text())
    errors = [finding for finding in report["findings"] if finding["severity"] == "error"]
    assert len(errors) == 1
    leading = report["findings"][0]
    diagnosis, variable = BUGGY[name]
    assert leading["diagnosis"] == diagnosis
    assert leading["site"]["file"].endswith(f"{name}.py") and leading["site"]["line"] > 1
    assert any(variable in text for text in leading["variables"])
    if name in FIRST_BAD_STEP:
        assert leading["step"] == FIRST_BAD_STEP[name]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.long if number % 2 else ()) for number, name in enumerate(BUGGY)]
)
def test_clean_twin_is_clean(name: str, book: Path, tmp_path: Path) -> None:
    code, report = run(EXAMPLES / "buggy" / f"{name}_clean.py", book, tmp_path / "run")
    assert code == 0
    assert not [finding for finding in report["findings"] if finding["severity"] == "error"]


@pytest.mark.parametrize(
    "name",
    [
        "reinforce",
        pytest.param(
            "hf_trainer", marks=pytest.mark.skipif(TORCH < (2, 6), reason="transformers needs torch 2.6 or later")
        ),
        *(pytest.param(name, marks=pytest.mark.long) for name in ("vae", "finetune_frozen", "augmented_workers")),
    ],
)
def test_other_good_scripts_are_clean(name: str, book: Path, tmp_path: Path) -> None:
    code, report = run(EXAMPLES / f"{name}.py", book, tmp_path / "run")
    assert code == 0
    assert not [finding for finding in report["findings"] if finding["severity"] == "error"]


def test_offline_check_agrees_with_live(book: Path, tmp_path_factory: pytest.TempPathFactory, tmp_path: Path) -> None:
    folder = buggy_run("missing_zero_grad", book, tmp_path_factory)
    live = json.loads((folder / "report.json").read_text())
    again = traincheck("check", folder, "--book", book, "--report", f"json={tmp_path / 'offline.json'}")
    assert again.returncode == 3, again.stderr
    offline = json.loads((tmp_path / "offline.json").read_text())
    assert offline["findings"] == live["findings"]
    assert offline["counts"] == live["counts"]
