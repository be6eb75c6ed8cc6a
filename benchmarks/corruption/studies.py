"""Measures the effect of a fault on training with `traincheck sdc study`; the suspect worker has the fault."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.corruption.grid import DECODER

BOTH = ("forward", "backward")
SELDOM = ",chance=0.0133"
"""One stroke in five steps on average; each step calls fifteen linear layers."""
MANTISSA, BIT_25, ANY_BIT, INTERMITTENT = "mantissa", "bit 25", "any bit", "intermittent"
FAULTS = {
    MANTISSA: "bitflip@{site}:Linear,bit=mantissa",
    BIT_25: "bitflip@{site}:Linear,bit=25",
    ANY_BIT: "bitflip@{site}:Linear,bit=any",
    INTERMITTENT: "intermittent@{site}:Linear",
}


@dataclass(frozen=True)
class StudyOptions:
    """The options of a study; `level` is its number."""

    level: int
    steps: int
    faults: tuple[str, ...]
    seed: int = 0


def _both(fault: str, chance: str = SELDOM) -> tuple[str, ...]:
    return tuple(FAULTS[fault].format(site=site) + chance for site in BOTH)


PERIOD, STEPS, SUBMODULES = "period", "steps", "submodules"
STUDIES: Mapping[str, StudyOptions] = {
    **{
        f"{PERIOD}, {fault}, seed {seed}": StudyOptions(3, 200, _both(fault), seed)
        for fault in (MANTISSA, BIT_25, INTERMITTENT)
        for seed in range(3)
    },
    **{f"{STEPS}, {fault}": StudyOptions(2, 100, _both(fault)) for fault in FAULTS},
    SUBMODULES: StudyOptions(1, 60, _both(MANTISSA, ",chance=0.05")),
}
QUICK = (f"{STEPS}, {MANTISSA}",)

DIFFERS = 3
"""The exit code of a study with a differing bit."""


def study(name: str) -> dict[str, Any]:
    """Run a study and return its result without the tables of single modules. Raises SystemExit if it fails."""
    options = STUDIES[name]
    words = ["--workload", DECODER, "--level", str(options.level), "--steps", str(options.steps), "--seed"]
    faults = [word for fault in options.faults for word in ("--fault", f"{fault},seed={options.seed}")]
    command = [sys.executable, "-m", "traincheck", "sdc", "study", *words, str(options.seed), *faults, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    if done.returncode not in (0, DIFFERS):
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr[-4000:]}")
    (level,) = json.loads(done.stdout)["levels"].values()
    del level["by_module"]
    return {"faults": list(options.faults), "seed": options.seed, **level}


def condensed(study_result: Mapping[str, Any]) -> dict[str, Any]:
    """Return the stored form of a study: six digits, and only single steps with a difference."""
    series = study_result["series"]
    if series and "noise_to_signal" in series[0]:
        series = [entry for entry in series if entry["noise_to_signal"] != 0]
    short = [{name: _short(value) for name, value in entry.items()} for entry in series]
    return {**study_result, "series": short}


def _short(value: Any) -> Any:
    return float(f"{value:.6g}") if isinstance(value, float) else value
