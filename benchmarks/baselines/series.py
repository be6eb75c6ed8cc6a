"""Reads loss and gradient norm by step from the notes of `meter`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import partial

import numpy as np

from benchmarks.baselines.meter import meter
from benchmarks.detection.recordings import Program
from benchmarks.detection.warm import run_forked


@dataclass(frozen=True)
class Series:
    """The series of rank 0: for step i + 1 the mean loss of its backward passes and the gradient norm.

    `failed` is whether the program failed under anomaly mode, or the mode warned.
    """

    loss: np.ndarray
    norm: np.ndarray
    failed: bool

    def __len__(self) -> int:
        return len(self.loss)


def metered(program: Program, *, anomaly: bool = True) -> Series:
    """Run a program, metered, in a process that `warm_up` has prepared, and read what was noted.

    Anomaly mode notes where each operation was called, which takes longer than the operation.
    """
    noted = program.home.with_name(program.home.name + ".metered")
    noted.unlink(missing_ok=True)
    env = dict(program.env)
    code, output = run_forked(
        program.script, program.args, program.home, program.ranks, env, partial(meter, noted, anomaly=anomaly)
    )
    lines = [json.loads(line) for line in noted.read_text().splitlines()] if noted.exists() else []
    return from_notes(lines, failed=code != 0 or "Error detected in" in output)


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
