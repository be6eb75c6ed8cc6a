"""Align the findings of several runs: a finding of several runs is one row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from traincheck.vocab.finding import Finding, Report
from traincheck.vocab.invariant import ERROR


@dataclass(frozen=True, slots=True)
class Seen:
    """A finding in one of the runs; `number` counts the findings there, from 1."""

    number: int
    finding: Finding


@dataclass(frozen=True, slots=True)
class Shared:
    """A finding, and where it is in each run; None in a run without it."""

    severity: str
    title: str
    runs: tuple[Seen | None, ...]

    @property
    def times(self) -> int:
        """The number of runs with this finding."""
        return sum(seen is not None for seen in self.runs)


def shared(reports: Sequence[Report]) -> tuple[Shared, ...]:
    """Return the findings of all runs: errors first, then findings of most runs, then the earliest.

    Findings with one diagnosis share a row, because the names of parameters and calls differ between programs. A row
    with an error in one run and a notice in another is an error.
    """
    by_identity: dict[str, dict[int, Seen]] = {}
    for run, report in enumerate(reports):
        for number, finding in enumerate(report.findings, 1):
            by_identity.setdefault(finding.identity, {}).setdefault(run, Seen(number, finding))
    rows = [
        Shared(
            min((seen.finding.severity for seen in by_run.values()), key=lambda severity: severity != ERROR),
            next(iter(by_run.values())).finding.title,
            tuple(by_run.get(run) for run in range(len(reports))),
        )
        for by_run in by_identity.values()
    ]
    return tuple(sorted(rows, key=lambda row: (row.severity != ERROR, -row.times, _first(row))))


def _first(row: Shared) -> int:
    return min(seen.finding.step for seen in row.runs if seen is not None)
