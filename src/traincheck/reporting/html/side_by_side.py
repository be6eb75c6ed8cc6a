"""Side by side: the findings of several runs lined up, so that what several of them have stands in one row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from traincheck.vocab.finding import Finding, Report
from traincheck.vocab.invariant import ERROR


@dataclass(frozen=True, slots=True)
class Seen:
    """A finding in one of the runs; `place` is its number there, from 1."""

    place: int
    finding: Finding


@dataclass(frozen=True, slots=True)
class Shared:
    """A finding, and for each run when it was seen there; None where it was not."""

    severity: str
    title: str
    runs: tuple[Seen | None, ...]

    @property
    def times(self) -> int:
        """In how many of the runs it was seen."""
        return sum(seen is not None for seen in self.runs)


def shared(reports: Sequence[Report]) -> tuple[Shared, ...]:
    """The findings of all runs: errors first, then what most of them have, then what came first.

    Findings with one diagnosis share a row: the rule (a parameter, a call) has another name in another program. An
    error in one run may be a notice in another; it is told as an error.
    """
    found: dict[str, dict[int, Seen]] = {}  # by identity
    for number, report in enumerate(reports):
        for place, finding in enumerate(report.findings, 1):
            found.setdefault(finding.identity, {}).setdefault(number, Seen(place, finding))
    rows = [
        Shared(
            min((seen.finding.severity for seen in of.values()), key=lambda severity: severity != ERROR),
            next(iter(of.values())).finding.title,
            tuple(of.get(number) for number in range(len(reports))),
        )
        for of in found.values()
    ]
    return tuple(sorted(rows, key=lambda row: (row.severity != ERROR, -row.times, _first(row))))


def _first(row: Shared) -> int:
    return min(seen.finding.step for seen in row.runs if seen is not None)
