"""Define what a study executes, and start its two workers on this machine. Imports no torch."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from traincheck.errors import BadOption
from traincheck.sdc.faults.fault import Fault, parse_fault
from traincheck.sdc.frameworks import TORCH
from traincheck.sdc.worker_processes import Job, run_children
from traincheck.sdc.workload.sizes import check_divisible, size_of

SUBMODULE, STEP, PERIOD = "submodule", "step", "period"
LEVELS = (SUBMODULE, STEP, PERIOD)

FORMAT, VERSION = "traincheck-sdc-study", 1
"""Format of the study file. 1: the first."""


@dataclass(frozen=True)
class Plan:
    """The settings of a study.

    These are the workload by name, steps of each level, seed, device, CPU threads, levels, faults and framework.
    `tensor_parallel` is the number of ranks over which a host splits the model.
    """

    workload: str
    steps: int
    seed: int = 0
    device: str = "cpu"
    threads: int = 1
    levels: Sequence[str] = LEVELS
    faults: Sequence[Fault] = ()
    tensor_parallel: int = 1
    framework: str = TORCH

    def __post_init__(self) -> None:
        """Raises BadOption if the workload cannot be split over the ranks, or if a fault names another rank."""
        built_in = size_of(self.workload)
        if built_in is not None:
            check_divisible(built_in, self.tensor_parallel)
        for fault in self.faults:
            if self.tensor_parallel > 1 and fault.rank is not None and fault.rank >= self.tensor_parallel:
                last = self.tensor_parallel - 1
                raise BadOption("rank= of --fault", fault.rank, f"a rank of the suspect host, 0 to {last}")

    def data(self) -> dict[str, Any]:
        """Return the plan as a JSON object, for `read_plan`."""
        return {**asdict(self), "levels": list(self.levels), "faults": [fault.text for fault in self.faults]}


def read_plan(data: Mapping[str, Any]) -> Plan:
    """Return the plan from its `data`."""
    return Plan(**{**data, "faults": tuple(parse_fault(text) for text in data["faults"])})


def levels_of(named: Sequence[str]) -> tuple[str, ...]:
    """Return the levels by name or number, in order; all of them by default. Raises BadOption."""
    numbers = {str(number): level for number, level in enumerate(LEVELS, 1)}
    selected = set()
    for name in named:
        if name not in LEVELS and name not in numbers:
            raise BadOption("--level", name, ", ".join(f"{number} ({level})" for number, level in numbers.items()))
        selected.add(numbers.get(name, name))
    return tuple(level for level in LEVELS if level in selected or not selected)


def launcher_rank(environ: Mapping[str, str] = os.environ, tensor_parallel: int = 1) -> int | None:
    """Return the rank that a launcher such as torchrun gave this process, or None without a launcher.

    Raises BadOption unless the launcher started two processes, or two for each rank of a host.
    """
    if "RANK" not in environ or "WORLD_SIZE" not in environ:
        return None
    started = environ["WORLD_SIZE"]
    if started != str(2 * tensor_parallel):
        launched = f"{started} process{'' if started == '1' else 'es'}"
        if tensor_parallel > 1:
            words = f"--nnodes 2 --nproc-per-node {tensor_parallel}"
            expected = (
                f"{2 * tensor_parallel}, two hosts of --tensor-parallel {tensor_parallel} ranks: torchrun {words}"
            )
        else:
            expected = "two, a trusted and a suspect one (or two hosts of N ranks, and --tensor-parallel N)"
        raise BadOption("the launcher", launched, expected)
    return int(environ["RANK"])


def run_pair(
    plan: Plan, progress: Callable[[str, int, int], object], on_output: Callable[[str], object]
) -> dict[str, Any]:
    """Execute a study on this machine, with two processes for each rank of a host; return the results as a JSON object.

    Ctrl-C ends the study after a step, with the results so far.
    """
    with tempfile.TemporaryDirectory(prefix="traincheck-sdc-") as made:
        folder = Path(made)
        job = {
            "task": "study",
            "plan": plan.data(),
            "store": str(folder / "store"),
            "study_file": str(folder / "study"),
        }
        hosts, size = ("trusted", "suspect"), plan.tensor_parallel
        names = [f"{name} rank {rank}" for name in hosts for rank in range(size)] if size > 1 else hosts
        jobs = [Job(name, {**job, "rank": rank}) for rank, name in enumerate(names)]
        run_children(jobs, folder, progress, on_output, stoppable=True)
        study: dict[str, Any] = json.loads((folder / "study").read_text(encoding="utf-8"))
    return study
