"""Define the metrics that all exporters use: name, meaning, and value for a status."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from traincheck.vocab.run_status import RunStatus

Sample = tuple[dict[str, str], float]
"""Labels and value."""

INSTALL = "pip install 'traincheck[metrics]'"


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric. If `counts`, it only grows, so rates of it are meaningful."""

    name: str
    meaning: str
    samples: Callable[[RunStatus], Iterable[Sample]]
    labels: tuple[str, ...] = ()
    counts: bool = False
    unit: str = "1"


def _sample_of(number: float | None) -> list[Sample]:
    return [] if number is None else [({}, float(number))]


def _by_rank(number: str) -> Callable[[RunStatus], list[Sample]]:
    def samples(status: RunStatus) -> list[Sample]:
        # A series has one value: of two processes of one rank (two programs in one run), the later one counts.
        by_rank = {rank.rank: getattr(rank, number) for rank in status.ranks}
        return [({"rank": str(rank)}, float(value)) for rank, value in by_rank.items() if value is not None]

    return samples


METRICS = (
    Metric("traincheck_steps", "Training steps, by rank.", _by_rank("steps"), ("rank",), True),
    Metric(
        "traincheck_steps_per_second",
        "Training steps in a second, over the last seconds, by rank.",
        _by_rank("steps_per_second"),
        ("rank",),
    ),
    Metric("traincheck_rules", "Rules that are deployed in this run.", lambda status: _sample_of(status.rules)),
    Metric(
        "traincheck_rules_checked",
        "Rules that were judged at least once so far.",
        lambda status: _sample_of(status.checked),
    ),
    Metric(
        "traincheck_findings",
        "Findings so far, by severity.",
        lambda status: [({"severity": "error"}, status.errors), ({"severity": "notice"}, status.notices)],
        ("severity",),
    ),
    Metric(
        "traincheck_windows_dropped",
        "Windows that were dropped because observation could not keep up, by rank.",
        _by_rank("dropped"),
        ("rank",),
        True,
    ),
    Metric(
        "traincheck_cost_ratio",
        "Seconds of observation per second of the run, by rank.",
        _by_rank("cost"),
        ("rank",),
    ),
    Metric(
        "traincheck_silent_seconds",
        "Seconds since the last heartbeat, by rank.",
        _by_rank("silent"),
        ("rank",),
        unit="s",
    ),
    Metric(
        "traincheck_run_over", "1 when the run is over, 0 while it continues.", lambda status: _sample_of(status.over)
    ),
)
