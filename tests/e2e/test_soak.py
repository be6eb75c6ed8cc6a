"""In a shortened long run memory stays flat, files stay within their size, and the recording remains usable.

The whole of it is `python -m benchmarks.soak`, whose programs these are.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from traincheck.trace.folder import RunFolder

pytestmark = [pytest.mark.slow, pytest.mark.long]

WORKLOADS = Path(__file__).parents[2] / "benchmarks" / "soak" / "workloads"
BLOCK = 250
WARM = 2
"""Blocks after which all is loaded and every cache has begun to fill."""
MAX_GROWTH = 20_000
"""Kilobytes: what a run of 50,000 steps may come to."""
BESIDES = 500_000
"""Bytes of a run folder that are not of the recording: the book, reports, notes."""


def traincheck(folder: Path, *words: object, steps: int = 0) -> subprocess.CompletedProcess[str]:
    """Run the command with a program of `steps` steps."""
    environ = {**os.environ, "SOAK_STEPS": str(steps), "SOAK_BLOCK": str(BLOCK), "COLUMNS": "100"}
    command = [sys.executable, "-m", "traincheck", *map(str, words)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=environ)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def growth(output: str) -> int:
    """Return the growth of memory after the warm-up, in kilobytes."""
    resident = [json.loads(line)["rss_kb"] for line in output.splitlines() if line.startswith("{")]
    assert len(resident) > WARM + 1
    return max(resident[WARM:]) - resident[WARM]


@pytest.mark.parametrize(("name", "steps"), [("steady", 2000), ("restless", 1500)])
def test_a_long_run_stays_within_memory_and_disk(name: str, steps: int, tmp_path: Path) -> None:
    script = WORKLOADS / f"{name}.py"
    for run in "ab":
        traincheck(tmp_path, "collect", "-o", run, script, steps=200)
    traincheck(tmp_path, "infer", "a", "b", "-o", "book.jsonl")

    words = ("--record", "all", "--keep-recording", "1MB", "-o", "long", script)
    done = traincheck(tmp_path, "run", "-b", "book.jsonl", *words, steps=steps)
    assert growth(done.stdout) < MAX_GROWTH
    folder = RunFolder.open(tmp_path / "long")
    assert folder.size < 1e6 + BESIDES
    assert len(list(folder.path.iterdir())) < 40
    report = json.loads((folder.path / "report.json").read_text())
    assert report["counts"]["steps"] == steps and report["counts"]["windows_dropped"] == 0
    assert report["counts"]["violated"] == 0, report["findings"]
    (removed,) = folder.removed()
    assert removed.startswith("steps ") and removed in done.stderr

    # What is left is checked and learned from, and each says what is missing.
    checked = traincheck(tmp_path, "check", "long", "-b", "book.jsonl", "--report", "json=again.json")
    again = json.loads((tmp_path / "again.json").read_text())
    assert again["counts"]["violated"] == 0 and again["counts"]["passed"] > report["counts"]["passed"] / 2
    assert removed in again["not_observed"] and "no longer in the recording" in checked.stdout
    assert removed in traincheck(tmp_path, "infer", "long", "-o", "other.jsonl").stderr


def test_a_long_recording_stays_within_memory_and_disk(tmp_path: Path) -> None:
    script = WORKLOADS / "steady.py"
    done = traincheck(tmp_path, "collect", "--keep-recording", "1 MB", "-o", "long", script, steps=1000)
    assert growth(done.stdout) < MAX_GROWTH
    folder = RunFolder.open(tmp_path / "long")
    assert folder.size < 1e6 + BESIDES
    (removed,) = folder.removed()
    assert removed in done.stderr
    traincheck(tmp_path, "infer", "long", "-o", "book.jsonl")
    traincheck(tmp_path, "check", "long", "-b", "book.jsonl", "--fail-on", "notice")
