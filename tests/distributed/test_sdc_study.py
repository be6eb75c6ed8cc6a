"""`traincheck sdc study`: two workers, a fault on one of them, and what the three levels say of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from processes import Running, until

OTHER_WORK = """
import os
import torch
from traincheck.sdc.workload.workload import load_workload

def workload(seed, device):
    made = load_workload("decoder-tiny", seed, device)
    batch = made.batch
    made.batch = lambda step: (batch(step) + os.getpid()) % 64
    return made
"""


DIES = """
import os
import torch.distributed
from traincheck.sdc.workload.workload import load_workload

def workload(seed, device):
    made = load_workload("decoder-tiny", seed, device)
    batch = made.batch
    made.batch = lambda step: os.abort() if step == 2 and torch.distributed.get_rank() == 1 else batch(step)
    return made
"""


def study(home: Path, *words: str, expect: int = 0) -> dict[str, Any]:
    command = [sys.executable, "-m", "traincheck", "sdc", "study", *words, "-o", "study.json"]
    done = subprocess.run(command, cwd=home, capture_output=True, text=True, timeout=300)
    assert done.returncode == expect, done.stdout + done.stderr
    return json.loads((home / "study.json").read_text())


def rows(level: dict[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    return {(row["kind"], row["direction"]): row for row in level["by_kind"]}


def test_a_fault_in_attention_is_found_there_and_spreads_where_nothing_is_copied(tmp_path: Path) -> None:
    # A high bit of the mantissa: a relative difference of 2**-3 at most, which no loss shows.
    fault = "bitflip@forward:layers.1.attention,bit=20,elements=4,chance=0.5,seed=2"
    result = study(tmp_path, "--steps", "6", "--fault", fault, expect=3)
    assert result["format"] == "traincheck-sdc-study" and result["faults"] == [fault] and not result["interrupted"]
    submodule, step, period = (result["levels"][level] for level in ("submodule", "step", "period"))

    times = submodule["injected"][0]["times"]
    assert 0 < times < 6
    different = {key: row for key, row in rows(submodule).items() if row["different"]}
    assert set(different) == {("attention", "forward")}
    hit = different["attention", "forward"]
    assert hit["different"] == 4 * times and 0 < hit["severity"] <= hit["worst"] <= 0.125 and hit["not_finite"] == 0
    assert [row["module"] for row in submodule["by_module"] if row["different"]] == ["layers.1.attention"]

    noises = [row["noise_to_signal"] for row in step["series"]]
    assert sum(noise > 0 for noise in noises) == step["injected"][0]["times"] == times
    assert step["worst_noise_to_signal"] == max(noises) < 0.5
    assert rows(step)["embedding", "gradient"]["different"] and rows(step)["attention", "update"]["different"]

    last = period["series"][-1]
    assert last["relative_distance"] > 0 and abs(last["loss"] - last["suspect_loss"]) < 0.05
    struck = next(index for index, row in enumerate(period["series"]) if row["parameter_distance"])
    assert all(row["parameter_distance"] for row in period["series"][struck:])
    assert period["evaluation"]["trusted"] != period["evaluation"]["suspect"]


@pytest.mark.slow
def test_ctrl_c_keeps_partial_results(tmp_path: Path) -> None:
    words = ("--level", "3", "--steps", "1000000", "-o", "study.json")
    running = Running(tmp_path, "sdc", "study", *words, "--fault", "bitflip@optimizer:head.weight,bit=2")
    try:
        until(lambda: "level 3 (period)" in running.err or running.process.poll() is not None)
        os.kill(running.process.pid, signal.SIGINT)
        assert running.ends() == 3, running.err
    finally:
        running.kill()
    result = json.loads((tmp_path / "study.json").read_text())
    period = result["levels"]["period"]
    assert result["interrupted"] and 0 < period["steps"] == len(period["series"]) < 1_000_000
    assert period["series"][-1]["parameter_distance"] > 0 and "these are the results so far" in running.out


@pytest.mark.slow
def test_workers_with_different_operations_are_an_error(tmp_path: Path) -> None:
    (tmp_path / "other.py").write_text(OTHER_WORK)
    command = [sys.executable, "-m", "traincheck", "sdc", "study", "--workload", "other.py:workload"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "[not-the-same-work]" in done.stderr and "the batch of step 1" in done.stderr


@pytest.mark.slow
def test_the_worker_that_died_is_named_and_not_the_one_that_missed_it(tmp_path: Path) -> None:
    (tmp_path / "dies.py").write_text(DIES)
    command = [sys.executable, "-m", "traincheck", "sdc", "study", "--workload", "dies.py:workload"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "[worker-failed]: The process 'suspect' of this command ended by signal 6" in done.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--fault", "flip@forward"), "one of bitflip, stuck, intermittent"),
        (("--level", "5"), "--level was given '5'"),
        (("-o", "mine.txt"), "[other-file]"),
    ],
)
def test_wrong_options_are_refused_before_anything_is_started(
    tmp_path: Path, words: tuple[str, ...], message: str
) -> None:
    (tmp_path / "mine.txt").write_text("precious")
    command = [sys.executable, "-X", "importtime", "-m", "traincheck", "sdc", "study", *words]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 2 and message in done.stderr
    assert "| torch\n" not in done.stderr and (tmp_path / "mine.txt").read_text() == "precious"


@pytest.mark.slow
def test_two_processes_compute_the_same_bits_with_xla_and_a_fault_is_found(tmp_path: Path) -> None:
    words = ("--framework", "xla", "--level", "1", "--level", "3", "--steps", "3")
    result = study(
        tmp_path, *words, "--fault", "bitflip@backward:layers.0.feed_forward,bit=20,elements=7,first=3", expect=3
    )
    assert result["framework"] == "xla" and "jax" in result["workers"]["suspect"]
    submodule, period = result["levels"]["submodule"], result["levels"]["period"]
    for row in submodule["series"][:2]:
        assert set(row) == {"step", "loss", "suspect_loss", "forward", "backward", "gradient", "update"}
        assert not any(row[way] for way in ("forward", "backward", "gradient", "update"))
    assert [row["parameter_distance"] > 0 for row in period["series"]] == [False, False, True]
    different = {key: row["different"] for key, row in rows(submodule).items() if row["different"]}
    assert different == {("feed-forward", "backward"): 7}


@pytest.mark.slow
def test_a_launcher_starts_the_two(tmp_path: Path) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    fault = "stuck@gradient:head.weight,bit=exponent,to=0,elements=64"
    words = ["-m", "traincheck", "sdc", "study", "--level", "2", "--steps", "2", "--fault", fault, "-o", "study.json"]
    done = subprocess.run([*torchrun, *words], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    step = json.loads((tmp_path / "study.json").read_text())["levels"]["step"]
    assert {key for key, row in rows(step).items() if row["different"]} <= {("head", "gradient"), ("head", "update")}
    assert step["worst_noise_to_signal"] > 0 and done.stdout.count("Level 2") == 1
