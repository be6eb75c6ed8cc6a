"""What a tracker is, and the curves that all of them are given.

Note [Trackers in a process of their own]
A tracker's library starts threads and services, reaches for the network, waits, prints and hooks the end of the
process. None of that may concern the program, nor keep the command that started it. So a tracker runs in a process of
its own (worker.py), which is told of the run through a pipe (tracking.py) and is ended when it hangs.
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
"""How the names of what we track begin, beside those of the program."""


class Tracker(Protocol):
    """Follows one run: `open`, then `show` for each finding and `measure` now and then, then `close`.

    It is made as `Class(place)`, once before the run to see whether it can be (MissingExtra, or ValueError for a place
    that cannot be one), and again in the process in which it works. What any other method raises is told once.
    """

    name: ClassVar[str]

    def open(self, run: Mapping[str, str]) -> str:
        """A run begins: `folder`, `script` and `host`. Where it can be looked at, in words for people."""

    def show(self, finding: Finding) -> None:
        """A finding was made just now."""

    def measure(self, status: RunStatus) -> None:
        """How the run fares; more than once a second is never asked for."""

    def close(self, report: Report | None, files: tuple[Path, ...]) -> None:
        """The run is over: what there is to say about it, and the files that say it. None where there is no report.
        What could not be opened is not closed."""


def needs(name: str, package: str) -> None:
    """Raise MissingExtra where a package is not installed, without importing it."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:  # the folder that it leaves in the working directory is no package
        raise MissingExtra(f"--track {name}", package, f"pip install 'traincheck[{name}]'")


def curves(status: RunStatus) -> dict[str, float]:
    """Name and number of each curve, as far as it is known."""
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
    """What is known at the end only."""
    counts = report.counts
    values = {"errors": counts.errors, "notices": counts.notices, "steps": counts.steps, "rules_held": counts.passed}
    curves = {PREFIX + name: float(number) for name, number in values.items()}
    if report.cost is not None:
        curves[PREFIX + "steps_watched"] = float(report.cost.watched)
        curves[PREFIX + "cost"] = report.cost.share(sum(report.cost.sources.values()))
    return curves


def name_of(run: Mapping[str, str]) -> str:
    """What a run of ours is called."""
    return phrases.plain(f"traincheck {Path(run.get('script', '')).name}".strip())


def in_words(finding: Finding) -> str:
    """A finding in one line."""
    return phrases.plain(f"{finding.severity} at step {finding.step}: {phrases.titled(finding)}")
