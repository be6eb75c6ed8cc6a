"""Check whether a training is reproducible: run it twice, in two processes, and compare all results.

Imports no torch: child processes do the work.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from traincheck.sdc.fingerprint_log import Difference, Entry, first_difference, read_entries
from traincheck.sdc.frameworks import TORCH, XLA
from traincheck.sdc.worker_processes import Job, run_children

RUNS = ("first run", "second run")


@dataclass(frozen=True)
class Execution:
    """The workload by name, steps, seed, device, CPU threads and framework of both runs."""

    workload: str
    steps: int = 3
    seed: int = 0
    device: str = "cpu"
    threads: int = 1
    framework: str = TORCH


@dataclass(frozen=True)
class Diagnosis:
    """The result of the comparison.

    `compared` counts compared results. `difference` is the first one that differs, or None. `settings` were equal in
    both runs. `undetermined` lists operations that torch reports as nondeterministic.
    """

    execution: Execution
    compared: int
    difference: Difference | None
    settings: dict[str, str] = field(default_factory=dict)
    undetermined: tuple[str, ...] = ()

    @property
    def reproducible(self) -> bool:
        return self.difference is None

    def data(self) -> dict[str, Any]:
        """Return the diagnosis as a JSON object."""
        difference = self.difference
        details = None
        if difference is not None:
            details = {
                "number": difference.number,
                "first": difference.first._asdict() if difference.first else None,
                "second": difference.second._asdict() if difference.second else None,
                "same_work": difference.same_work,
            }
        return {
            **asdict(self.execution),
            "reproducible": self.reproducible,
            "compared": self.compared,
            "first_difference": details,
            "settings": self.settings,
            "undetermined": list(self.undetermined),
        }


def diagnose(
    execution: Execution, progress: Callable[[str, int, int], object], on_output: Callable[[str], object]
) -> Diagnosis:
    """Run the workload twice and compare all results. Raises WorkloadUnusable and WorkerFailed."""
    with tempfile.TemporaryDirectory(prefix="traincheck-sdc-") as made:
        folder = Path(made)
        entries = [folder / f"{number}.entries" for number in range(2)]
        setting_files = [folder / f"{number}.settings" for number in range(2)]
        for number, name in enumerate(RUNS):  # one after the other: they take the same cores, or the same device
            job = {"task": "record", **asdict(execution), "title": name, "entries": str(entries[number])}
            run_children(
                [Job(name.replace(" ", "-"), {**job, "settings_file": str(setting_files[number])})],
                folder,
                progress,
                on_output,
            )
        about = json.loads(setting_files[0].read_text(encoding="utf-8"))
        difference = first_difference(*map(read_entries, entries))
        compared = sum(1 for _ in read_entries(entries[0])) if difference is None else difference.number
    return Diagnosis(execution, compared, difference, about["settings"], tuple(about["undetermined"]))


def advice(difference: Difference, undetermined: tuple[str, ...], framework: str = TORCH) -> str:
    """Return a sentence that says where to look for the cause of the difference."""
    if framework == XLA:
        return "Programs and inputs are the same in both runs: check XLA_FLAGS, other threads and the device."
    entry: Entry | None = difference.first or difference.second
    if not difference.same_work:
        return "The runs executed different operations there: check code that depends on time, set order or files."
    assert entry is not None
    if entry.direction == "build":
        return "The initial weights differ: draw them from a generator that is seeded with the workload's seed."
    if entry.direction == "batch":
        return "The batches differ: derive them from the workload's seed and the step number alone."
    if undetermined:
        return f"Torch has no deterministic implementation of {', '.join(undetermined)} here: use other operations."
    return "Check it for numbers that do not come from the seed (time, os.urandom), and for other threads."
