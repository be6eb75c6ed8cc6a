"""Screen devices: run rounds of the exercise on each device and collect their fingerprints."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from traincheck.sdc.determinism import nondeterministic_operations
from traincheck.sdc.faults.fault import Fault
from traincheck.sdc.screening.devices import device_of, software
from traincheck.sdc.screening.exercise import Exercise
from traincheck.sdc.screening.reference_fingerprints import ReferenceFingerprints
from traincheck.sdc.screening.verdicts import Rounds
from traincheck.sdc.workload.workload import load_workload, workload_errors

LEAST_ROUNDS = 2
"""A comparison needs two rounds."""


@dataclass(frozen=True)
class Screening:
    """The settings of a screening.

    These are the workload by name, steps of a round, seed, threads of torch, seconds for each device, and faults to
    inject.
    """

    workload: str
    steps: int
    seed: int
    threads: int
    seconds: float
    faults: Sequence[Fault] = ()

    @property
    def work(self) -> dict[str, str]:
        """The settings that must be equal for fingerprints to be comparable."""
        return {"workload": self.workload, "steps": str(self.steps), "seed": str(self.seed)}


@dataclass
class Screened:
    """The rounds of each device, and whether Ctrl-C ended the screening."""

    devices: list[Rounds] = field(default_factory=list)
    interrupted: bool = False


def devices_to_screen(named: str | None) -> list[torch.device]:
    """Return the named device, or all devices of its kind if it has no number. Default: the accelerators, else the CPU.

    Raises BadOption for a device that does not exist.
    """
    if named is None:
        named = "cuda" if torch.cuda.is_available() else "cpu"
    device = device_of(named)
    if device.type == "cuda" and device.index is None:
        return [torch.device("cuda", number) for number in range(torch.cuda.device_count())]
    return [device]


def screen(
    screening: Screening,
    devices: Sequence[torch.device],
    check: Callable[[Mapping[str, str]], object],
    progress: Callable[[str, int, int], object],
) -> Screened:
    """Screen one device after the other. `check` receives the software description before the work starts.

    Ctrl-C ends the screening with the results of complete rounds, or is raised if there are none. Raises
    WorkloadUnusable.
    """
    screened = Screened()
    for device in devices:
        workload = load_workload(screening.workload, screening.seed, device)
        torch.set_num_threads(screening.threads)
        check(software(device))
        rounds = Rounds(str(device), software(device))
        screened.devices.append(rounds)
        try:
            with workload_errors(screening.workload):
                exercise = Exercise(
                    workload, screening.steps, screening.seed, device, screening.threads, screening.faults
                )
                _rounds(exercise, screening, rounds, progress)
        except KeyboardInterrupt:
            screened.devices = [device_rounds for device_rounds in screened.devices if device_rounds.number]
            if not screened.devices:
                raise
            screened.interrupted = True
            return screened
    return screened


def _rounds(
    exercise: Exercise, screening: Screening, rounds: Rounds, progress: Callable[[str, int, int], object]
) -> None:
    began, total = time.monotonic(), max(1, round(screening.seconds))

    def stepped() -> None:
        # Short of the end, which comes with the round that is under way then.
        progress(f"screening {rounds.device}", min(int(time.monotonic() - began), total - 1), total)

    with nondeterministic_operations() as names:
        while rounds.number < LEAST_ROUNDS or time.monotonic() - began < screening.seconds:
            rounds.add(exercise.round(rounds.number, stepped))
            rounds.seconds = time.monotonic() - began
            rounds.undetermined = tuple(names)


def reference_from(screening: Screening, rounds: Rounds) -> ReferenceFingerprints:
    """Return the fingerprints of a device whose rounds were all equal."""
    return ReferenceFingerprints(
        screening.work, rounds.software, {key: next(iter(values)) for key, values in rounds.values.items()}
    )


def as_data(screening: Screening, screened: Screened, verdicts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the results as a JSON object."""
    return {
        "format": "traincheck-sdc-screening",
        "version": 1,
        **screening.work,
        "faults": [fault.text for fault in screening.faults],
        "interrupted": screened.interrupted,
        "devices": list(verdicts),
    }
