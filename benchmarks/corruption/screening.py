"""Screens a device with a fault as `traincheck sdc screen` does, with and without reference fingerprints.

A round is three training steps, and matrix products without a fault. Screening ends when both methods have found the
fault, or after the last round.
"""

from __future__ import annotations

from typing import Any

from benchmarks.corruption.alarm_training import CPU
from benchmarks.corruption.grid import Point
from traincheck.sdc.screening.exercise import Exercise
from traincheck.sdc.screening.reference_fingerprints import ReferenceFingerprints
from traincheck.sdc.screening.verdicts import CORRUPT, Rounds, judge
from traincheck.sdc.workload.workload import load_workload

BY_REFERENCE, ITSELF = "screening, known fingerprints", "screening, itself over time"

STEPS = 3
"""Steps of a round, as in `traincheck sdc screen`."""
ROUNDS = 10
"""Thirty training steps: half as many as the trainings with alarms."""


def screen(point: Point, rounds: int = ROUNDS) -> dict[str, Any]:
    """Screen a point. Return strokes, the first stroke, and the step in which each method found the fault.

    Steps count over all rounds; a method finds a fault in the last step of a round.
    """
    work = {"workload": point.workload, "steps": str(STEPS), "seed": "0"}
    faults = () if point.fault is None else (point.fault,)
    # Clean runs use different data each; faulty runs use the data of the command.
    seed = point.seed if point.fault is None else 0
    exercise = _exercise(point.workload, seed, faults)
    reference = ReferenceFingerprints(work, {}, _exercise(point.workload, seed).round(0, _quiet))
    seen = Rounds("cpu", {})
    strokes, first = 0, None
    alarms: dict[str, int | None] = {BY_REFERENCE: None, ITSELF: None}
    for number in range(rounds):
        seen.add(exercise.round(number, _quiet))
        for fault in exercise.injected:
            strokes += fault.times
            if fault.hits and first is None:
                first = number * STEPS + fault.hits[0].step
        for name, against in ((BY_REFERENCE, reference), (ITSELF, None)):
            if alarms[name] is None and judge([seen], against)[0]["verdict"] == CORRUPT:
                alarms[name] = (number + 1) * STEPS
        if None not in alarms.values():
            break
    return {"strokes": strokes, "first": first, "alarms": alarms}


def _exercise(workload: str, seed: int, faults: tuple[Any, ...] = ()) -> Exercise:
    return Exercise(load_workload(workload, seed, CPU), STEPS, seed, CPU, 1, faults)


def _quiet() -> None:
    """Print no progress within a round."""
