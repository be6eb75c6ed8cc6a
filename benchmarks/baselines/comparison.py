"""Finds the steps in which the simple detectors alarm on the runs of a case."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.baselines.detectors import DETECTORS
from benchmarks.baselines.series import Series, metered
from benchmarks.detection.recordings import Program


@dataclass(frozen=True)
class Compared:
    """First alarms of each detector that has any, on the buggy run and on the clean one."""

    buggy: dict[str, int]
    clean: dict[str, int]
    steps: int


def compare(buggy: Program, clean: Program, reference: Program) -> Compared:
    """Run the three programs, metered; the learned detectors are fitted to `reference`, an earlier clean run."""
    reference_series = metered(reference, anomaly=False)
    runs = {name: metered(program) for name, program in (("buggy", buggy), ("clean", clean))}
    return Compared(
        alarms(runs["buggy"], reference_series), alarms(runs["clean"], reference_series), len(runs["buggy"])
    )


def alarms(run: Series, reference: Series) -> dict[str, int]:
    """The first step of each detector that alarms."""
    steps = {name: detector(run, reference) for name, detector in DETECTORS.items()}
    return {name: step for name, step in steps.items() if step is not None}
