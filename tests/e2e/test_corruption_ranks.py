"""The corruption benchmark's job of two ranks, and what Ctrl-C leaves of it, by the command as users start it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "benchmarks.corruption", "--quick"]


def test_two_ranks_find_an_injected_fault(tmp_path: Path) -> None:
    command = [*COMMAND, "--only", "ranks", "--runs", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "replicas: 1 of 1 found" in done.stdout
    assert "0 false alarms in 1 clean runs" in done.stdout


def test_ctrl_c_keeps_finished_points(tmp_path: Path) -> None:
    command = [*COMMAND, "--only", "alarms,screening", "--jobs", "1", "--runs", str(tmp_path)]
    running = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert running.stderr is not None
    assert any(line.startswith("alarms: 4 of 4") for line in running.stderr)
    running.send_signal(signal.SIGINT)
    stdout, stderr = running.communicate()
    assert running.returncode == 130, stderr
    assert "--go-on" in stderr and "loss alarm: " in stdout and "Traceback" not in stderr
    assert len([json.loads(line) for line in (tmp_path / "quick.jsonl").read_text().splitlines()]) >= 4
