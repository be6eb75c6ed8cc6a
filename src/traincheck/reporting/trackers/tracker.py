"""Defines trackers, and the curves that all of them log.

Note [Trackers in a process of their own]
A tracker's library starts threads and services, uses the network, waits, prints, and registers exit hooks. None of
this may affect the program, or delay the command. A tracker therefore runs in a separate process (worker.py). The
command sends messages through a pipe (tracking.py), and kills the process if it hangs.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Protocol

from traincheck.errors import MissingExtra
from traincheck.reporting import phrases
from traincheck.vocab.finding import Finding, Report
from traincheck.vocab.run_status import RunStatus

PREFIX = "traincheck/"
"""The prefix that separates TrainCheck's curves from those of the program."""


class Tracker(Protocol):
    """Logs one run: `open`, then `show` for each finding and `measure` at intervals, then `close`.

    TrainCheck calls `Class(target)` twice: before the run, to report errors early, and again in the tracker's process.
    The class raises MissingExtra, or ValueError for a target that it cannot use. TrainCheck reports the first exception
    of the other methods and ignores later ones.
    """

    name: ClassVar[str]

    def open(self, run: Mapping[str, str]) -> str:
        """Begin a run with `folder`, `script` and `host`. Return where the user can look at it, as text."""

    def show(self, finding: Finding) -> None:
        """Log a new finding."""

    def measure(self, status: RunStatus) -> None:
        """Log the status of the run; called at most once a second."""

    def close(self, report: Report | None, files: tuple[Path, ...]) -> None:
        """End the run with its report (None if there is none) and the report files. Not called if `open` failed."""


def needs(name: str, package: str) -> None:
    """Raise MissingExtra if a package is not installed. Does not import the package."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:  # a folder of the library's output, not the package
        raise MissingExtra(f"--track {name}", package, f"pip install 'traincheck[{name}]'")


def curves(status: RunStatus) -> dict[str, float]:
    """Return the known curve values by name."""
    values = {
        "errors": status.errors,
        "notices": status.notices,
        "rules_checked": status.checked,
        "windows_dropped": status.dropped,
        "steps_per_second": status.steps_per_second,
        "cost": status.cost,
    }
    return {PREFIX + name: float(number) for name, number in values.items() if number is not None}


def last_numbers(report: Report) -> dict[str, float]:
    """Return the values that are known only at the end, by name."""
    counts = report.counts
    values = {"errors": counts.errors, "notices": counts.notices, "steps": counts.steps, "rules_held": counts.passed}
    curves = {PREFIX + name: float(number) for name, number in values.items()}
    if report.cost is not None:
        curves[PREFIX + "steps_watched"] = float(report.cost.watched)
        curves[PREFIX + "cost"] = report.cost.share(sum(report.cost.sources.values()))
    return curves


def name_of(run: Mapping[str, str]) -> str:
    """Return the name of the tracked run."""
    return phrases.plain(f"traincheck {Path(run.get('script', '')).name}".strip())


def in_words(finding: Finding) -> str:
    """Return a finding as one line."""
    return phrases.plain(f"{finding.severity} at step {finding.step}: {phrases.titled(finding)}")
