"""Programs of JAX under the commands: silent errors are found, and the program computes the same bits."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("programs") / "jax_loop.py"
SOURCE = Path(__file__).resolve().parents[2] / "src"

pytest.importorskip("optax")
pytestmark = pytest.mark.slow


def run(folder: Path, *words: str, devices: int = 1) -> subprocess.CompletedProcess[str]:
    flags = f"--xla_force_host_platform_device_count={devices} --xla_cpu_multi_thread_eigen=false"
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(SOURCE), "XLA_FLAGS": flags}
    return subprocess.run(
        [sys.executable, *words], cwd=folder, env=environ, capture_output=True, text=True, timeout=300
    )


def test_a_sound_run_has_no_finding_and_computes_the_same_bits(tmp_path: Path) -> None:
    done = run(tmp_path, "-m", "traincheck", "run", "-o", "run", "--packs", "shipped", str(PROGRAM), "none")
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    assert (done.returncode, report["findings"], report["counts"]["steps"]) == (0, [], 16), done.stdout + done.stderr
    plain = run(tmp_path, str(PROGRAM), "none")
    assert plain.stdout.strip() and plain.stdout in done.stdout


def test_torch_may_be_imported_first(tmp_path: Path) -> None:
    (tmp_path / "both.py").write_text(f"import runpy, torch\nrunpy.run_path({str(PROGRAM)!r}, run_name='__main__')\n")
    done = run(tmp_path, "-m", "traincheck", "run", "-o", "run", "--packs", "shipped", "both.py", "dropped")
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    assert [finding["diagnosis"] for finding in report["findings"]] == ["optimizer-changes-nothing"], done.stderr


@pytest.mark.long
def test_silent_errors_are_found(tmp_path: Path) -> None:
    seeds = run(tmp_path, str(PROGRAM), "seeds", "0", "1", "2", devices=2)
    assert seeds.returncode == 0, seeds.stderr
    infer = run(tmp_path, "-m", "traincheck", "infer", "good-0", "good-1", "good-2", "-o", "good.jsonl")
    assert infer.returncode == 0, infer.stderr
    errors = ("none", "frozen", "same_key", "dropped", "uncounted", "diverging")
    done = run(tmp_path, str(PROGRAM), "errors", *errors, devices=2)
    assert {name: findings for name, *findings in map(str.split, done.stdout.splitlines())} == {
        "none": [],
        "frozen": ["parameters-treated-differently:1"],
        "same_key": ["random-keys-repeat:2"],
        "dropped": ["optimizer-changes-nothing:11"],
        # The schedule begins at a rate of zero, and stays there.
        "uncounted": ["differs-from-good-runs:2", "optimizer-changes-nothing:11"],
        "diverging": ["device-copies-differ:3"],
    }, done.stderr
