"""Series: loss and gradient norm of a run by step, out of what `metered` noted."""

from __future__ import annotations

import json
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.detection.recordings import ROOT, Program, run

METERED = Path(__file__).with_name("metered.py")


@dataclass(frozen=True)
class Series:
    """What was metered of rank 0: for step i + 1 the mean loss of its backward passes and the gradient norm.

    `failed` says that the program ended with an error under anomaly mode, or that the mode warned.
    """

    loss: np.ndarray
    norm: np.ndarray
    failed: bool

    def __len__(self) -> int:
        return len(self.loss)


def metered(program: Program) -> Series:
    """Run a program, metered, and read what was noted."""
    with tempfile.TemporaryDirectory() as scratch:
        words = list(program.command)
        at = words.index(next(word for word in words if word.endswith(".py")))
        command = [*words[:at], str(METERED), words[at], scratch, *words[at + 1 :]]
        done = run(program, command, {"PYTHONPATH": str(ROOT)})
        noted = Path(scratch) / "0.jsonl"
        lines = [json.loads(line) for line in noted.read_text().splitlines()] if noted.exists() else []
    return from_notes(lines, failed=done.returncode != 0 or "Error detected in" in done.stderr)


def from_notes(lines: list[dict[str, float]], *, failed: bool) -> Series:
    """Steps out of notes: a step ends with its last update before the next backward."""
    losses: list[float] = []
    norms: list[float] = []
    pending: list[float] = []
    for line in lines:
        if "loss" in line:
            pending.append(line["loss"])
        elif pending or not losses:
            losses.append(float(np.mean(pending)) if pending else float("nan"))
            norms.append(line["norm"])
            pending = []
        else:
            norms[-1] = max(norms[-1], line["norm"])
    return Series(np.array(losses), np.array(norms), failed)


if __name__ == "__main__":
    raise SystemExit(f"{sys.argv[0]} is no command; python -m benchmarks.detection runs the baselines")
