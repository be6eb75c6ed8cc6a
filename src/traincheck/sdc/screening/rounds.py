"""Screening: rounds of an exercise on each device, and what their fingerprints say of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from traincheck.sdc.determinism import undetermined
from traincheck.sdc.faults.fault import Fault
from traincheck.sdc.screening.devices import device_of, software
from traincheck.sdc.screening.exercise import Exercise
from traincheck.sdc.screening.reference_fingerprints import ReferenceFingerprints
from traincheck.sdc.screening.verdicts import Rounds
from traincheck.sdc.workload.workload import blamed, load_workload

LEAST_ROUNDS = 2
"""One says nothing about what another would have been."""


@dataclass(frozen=True)
class Screening:
    """What to screen with: the workload by its name, steps of a round, seed, threads of torch, seconds for each
    device, and faults, to see that they are found."""

    workload: str
    steps: int
    seed: int
    threads: int
    seconds: float
    faults: Sequence[Fault] = ()

    @property
    def work(self) -> dict[str, str]:
        """What has to be the same for fingerprints to be."""
        return {"workload": self.workload, "steps": str(self.steps), "seed": str(self.seed)}


@dataclass
class Screened:
    """What came out of it: the devices, and whether Ctrl-C ended it."""

    devices: list[Rounds] = field(default_factory=list)
    interrupted: bool = False


def devices_to_screen(named: str | None) -> list[torch.device]:
    """The device that is named, all of its kind where its number is not; without a name the accelerators, or the CPU.

    Raises BadOption for one that is not here.
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
    """Screen one device after the other. `check` is given what the bits depend on, before any is computed.

    Ctrl-C ends it with what was found in whole rounds; it is raised where there is none. Raises WorkloadUnusable.
    """
    screened = Screened()
    for device in devices:
        workload = load_workload(screening.workload, screening.seed, device)
        torch.set_num_threads(screening.threads)
        check(software(device))
        rounds = Rounds(str(device), software(device))
        screened.devices.append(rounds)
        try:
            with blamed(screening.workload):
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

    with undetermined() as names:
        while rounds.number < LEAST_ROUNDS or time.monotonic() - began < screening.seconds:
            rounds.add(exercise.round(rounds.number, stepped))
            rounds.seconds = time.monotonic() - began
            rounds.undetermined = tuple(names)


def reference_from(screening: Screening, rounds: Rounds) -> ReferenceFingerprints:
    """What to save of a device on which all rounds were the same."""
    return ReferenceFingerprints(
        screening.work, rounds.software, {key: next(iter(values)) for key, values in rounds.values.items()}
    )


def as_data(screening: Screening, screened: Screened, verdicts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """As JSON holds it."""
    return {
        "format": "traincheck-sdc-screening",
        "version": 1,
        **screening.work,
        "faults": [fault.text for fault in screening.faults],
        "interrupted": screened.interrupted,
        "devices": list(verdicts),
    }
