"""`traincheck verify` ends a program after some steps, and says for each computation whether it was right."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import warm_commands
from processes import Running, until
from rank_jobs import PROGRAM as RANKS
from rank_jobs import rank_starter

PROGRAM = """
import sys
import time

import torch
from torch import nn

from traincheck.sdc.faults.fault import parse_fault
from traincheck.testing.corruption import inject


class Net(nn.Sequential):
    pass


def train(steps, pause=0.0):
    for step in range(1, steps + 1):
        inputs, labels = torch.randn(16, 8), torch.randint(0, 4, (16,))
        loss = nn.functional.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print("updated", step, flush=True)
        time.sleep(pause)


torch.manual_seed(0)
model = Net(nn.Linear(8, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
kind = sys.argv[1] if sys.argv[1:] else ""
try:
    if kind == "wrong":
        with inject(model, optimizer, parse_fault("bitflip@optimizer:0.weight,bit=0,first=5,last=5")):
            train(30)
    elif kind == "raises":
        train(3)
        raise ValueError("no more data")
    elif kind == "is stubborn":
        for _ in range(30):
            try:
                train(1)
            except BaseException:
                print("caught")
    elif kind == "is slow":
        train(500, pause=0.1)
    elif kind != "does not train":
        train(int(kind or 30))
finally:
    print("cleaned up")
print("trained to its end")
"""


def verify(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """The command on PROGRAM, with the run folder `run`."""
    (folder / "train.py").write_text(PROGRAM)
    command = [sys.executable, "-m", "traincheck", "verify", "-o", "run", *words]
    return warm_commands.run(command, cwd=folder, env={**os.environ, "COLUMNS": "100"})


def rows(text: str) -> dict[str, tuple[str, int, str]]:
    """The table: subject, number of results and verdict of each replay."""
    found = re.findall(r"^  (\w+ again)\s+(\S+)\s+(\d+)  (\S.*?)\s*$", text, re.MULTILINE)
    return {name: (subject, int(times), verdict) for name, subject, times, verdict in found}


def test_a_sound_program_ends_after_the_requested_steps(tmp_path: Path) -> None:
    done = verify(tmp_path, "--steps", "6", "train.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "".join(f"updated {step}\n" for step in range(1, 7)) + "cleaned up\n"
    table = rows(done.stderr)
    assert table["update again"] == ("AdamW", 6, "agrees")
    assert table["forward again"] == table["backward again"] == ("Net", 7, "agrees")
    assert done.stderr.rstrip().endswith("traincheck: verified: nothing wrong found in 6 steps")
    assert "Traceback" not in done.stderr and "no occasion" in done.stderr
    shown = warm_commands.run([sys.executable, "-m", "traincheck", "report", "run"], cwd=tmp_path)
    assert rows(shown.stdout) == table


@pytest.mark.slow
def test_json_is_all_that_stdout_holds(tmp_path: Path) -> None:
    done = verify(tmp_path, "--json", "--steps", "4", "train.py")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["verdict"] == "clean" and report["findings"] == []
    assert {(row["experiment"], row["subject"], row["agreed"]) for row in report["verification"]} >= {
        ("update", "AdamW", 4),
        ("forward", "Net", 5),
    }
    assert "updated 4" in done.stderr and report == json.loads((tmp_path / "run" / "report.json").read_text())


@pytest.mark.slow
def test_a_wrong_update_is_an_error(tmp_path: Path) -> None:
    done = verify(tmp_path, "train.py", "wrong")
    assert done.returncode == 3, done.stderr
    assert rows(done.stderr)["update again"] == ("AdamW", 19, "wrong 1 of 19 times")
    assert "[computation-wrong-once]" in done.stderr and "cause" in done.stderr
    assert "traincheck: wrong: A computation was wrong once" in done.stderr.splitlines()[-1]


@pytest.mark.slow
def test_a_program_may_end_earlier(tmp_path: Path) -> None:
    done = verify(tmp_path, "train.py", "7")
    assert done.returncode == 0 and "trained to its end" in done.stdout, done.stderr
    assert "verified: nothing wrong found in 7 steps; the program ended before step 20" in done.stderr


@pytest.mark.slow
def test_an_error_of_the_program_stays_its_own(tmp_path: Path) -> None:
    done = verify(tmp_path, "train.py", "raises")
    assert done.returncode == 1
    assert "ValueError: no more data" in done.stderr and "cleaned up" in done.stdout
    assert "not verified: the program failed after 3 steps; nothing wrong was found until then" in done.stderr


@pytest.mark.slow
def test_a_program_that_catches_everything_makes_no_further_update(tmp_path: Path) -> None:
    done = verify(tmp_path, "--steps", "5", "train.py", "is stubborn")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("updated") == 5 and done.stdout.count("caught") == 25
    assert "verified: nothing wrong found in 5 steps" in done.stderr


@pytest.mark.slow
def test_without_training_nothing_is_verified(tmp_path: Path) -> None:
    done = verify(tmp_path, "train.py", "does not train")
    assert done.returncode == 2 and "not verified: " in done.stderr, done.stderr
    (tmp_path / "empty.py").write_text("print('no torch')\n")
    done = verify(tmp_path, "-o", "other", "empty.py")
    assert done.returncode == 2 and "nothing was observed" in done.stderr


@pytest.mark.slow
def test_an_interrupt_shows_the_results_so_far(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    running = Running(tmp_path, "verify", "--steps", "400", "-o", "run", "train.py", "is slow")
    until(lambda: "updated 4" in running.out or running.process.poll() is not None)
    os.killpg(running.process.pid, signal.SIGINT)
    assert running.ends() == 130, running.err
    assert "cleaned up" in running.out and rows(running.err)["update again"][1] >= 4
    assert "not verified: the program was interrupted after" in running.err


@pytest.mark.slow
def test_all_ranks_end_in_the_same_step(tmp_path: Path) -> None:
    (tmp_path / "ranks.py").write_text(RANKS)
    done = verify(tmp_path, "--steps", "5", "--", *rank_starter(tmp_path), "ranks.py", "7")
    assert done.returncode == 0, done.stderr
    assert rows(done.stderr)["update again"] == ("SGD", 10, "agrees")
    assert "verified: nothing wrong found in 5 steps" in done.stderr and "Traceback" not in done.stderr


def test_invalid_numbers_of_steps_are_rejected(tmp_path: Path) -> None:
    for value in ("0", "-2", "many"):
        done = verify(tmp_path, "--steps", value, "train.py")
        assert done.returncode == 2 and "--steps" in done.stderr, done.stderr


EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "buggy"
WRONG_EXAMPLES = {
    "broadcast_backward": "function ApplyGain",
    "edited_activations": "Forecaster.layers.",
    "checkpointed_dropout": "Voter.blocks.",
}
"""Examples with wrong gradients, and the function or the kind of module that computes them."""


@pytest.mark.slow
@pytest.mark.parametrize("name", WRONG_EXAMPLES)
def test_examples_with_wrong_gradients_are_found(tmp_path: Path, name: str) -> None:
    done = verify(tmp_path, "--steps", "5", str(EXAMPLES / f"{name}.py"))
    assert done.returncode == 3, done.stderr
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    wrong = [finding for finding in report["findings"] if finding["severity"] == "error"]
    assert any(variable.startswith(WRONG_EXAMPLES[name]) for finding in wrong for variable in finding["variables"]), (
        wrong
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", WRONG_EXAMPLES)
def test_their_clean_twins_are_verified(tmp_path: Path, name: str) -> None:
    done = verify(tmp_path, "--steps", "5", str(EXAMPLES / f"{name}_clean.py"))
    assert done.returncode == 0 and "verified: nothing wrong found in 5 steps" in done.stderr, done.stderr
