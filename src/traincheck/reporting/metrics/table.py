"""The metrics: name, meaning, and what a status says of each. The exporters go by this table."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from traincheck.vocab.run_status import RunStatus

Sample = tuple[dict[str, str], float]
"""Labels, and the number."""

INSTALL = "pip install 'traincheck[metrics]'"


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric. `counts` says that it only grows, so that rates can be taken of it."""

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
        # Of two processes of one rank (two programs in one run) the later one is told: a series has one number.
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
    Metric("traincheck_rules", "Rules that are checked on this run.", lambda status: _sample_of(status.rules)),
    Metric("traincheck_rules_checked", "Rules that have come up so far.", lambda status: _sample_of(status.checked)),
    Metric(
        "traincheck_findings",
        "Findings so far, by severity.",
        lambda status: [({"severity": "error"}, status.errors), ({"severity": "notice"}, status.notices)],
        ("severity",),
    ),
    Metric(
        "traincheck_windows_dropped",
        "Windows that were left out because observing could not keep up, by rank.",
        _by_rank("dropped"),
        ("rank",),
        True,
    ),
    Metric(
        "traincheck_cost_ratio",
        "Seconds that observing took for each second that passed, by rank.",
        _by_rank("cost"),
        ("rank",),
    ),
    Metric(
        "traincheck_silent_seconds",
        "Seconds since the last sign of life, by rank.",
        _by_rank("silent"),
        ("rank",),
        unit="s",
    ),
    Metric(
        "traincheck_run_over", "1 when the run is over, 0 while it goes on.", lambda status: _sample_of(status.over)
    ),
)
