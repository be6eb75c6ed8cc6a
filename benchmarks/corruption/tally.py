"""Counts for each detector: runs with a fault that it detected, its delay, and its false alarms.

A run in which the fault never struck is no positive: an alarm in it is a false one, as is an alarm in a clean run, or
one that comes before the first stroke.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Tally:
    """Counts of a detector. A delay is in steps, 0 being the step of the first stroke."""

    struck: int = 0
    detected: int = 0
    delays: list[int] = field(default_factory=list)
    never_struck: int = 0
    clean: int = 0
    false_alarms: int = 0

    def add(self, first: int | None, alarm: int | None, *, clean: bool = False) -> None:
        """Take in a run: the step of the first stroke and that of the first alarm, None where there was none."""
        if first is None:
            self.clean += clean
            self.never_struck += not clean
            self.false_alarms += alarm is not None
            return
        self.struck += 1
        if alarm is None:
            return
        if alarm < first:
            self.false_alarms += 1
        else:
            self.detected += 1
            self.delays.append(alarm - first)

    @property
    def rate(self) -> float | None:
        """The share that was found; None where there was nothing to be found."""
        return self.detected / self.struck if self.struck else None

    def data(self) -> dict[str, Any]:
        """As JSON holds it."""
        return {
            "struck": self.struck,
            "found": self.detected,
            "delay": {"median": statistics.median(self.delays), "most": max(self.delays)} if self.delays else None,
            "never_struck": self.never_struck,
            "clean": self.clean,
            "false_alarms": self.false_alarms,
        }


def tallies(rows: Iterable[Mapping[str, Any]], by: str | None = None) -> dict[tuple[str, Any], Tally]:
    """By detector, and by what the rows say under `by` where it is given.

    A row tells of a run: `clean`, `first`, and `alarms`, the first alarm of each detector.
    """
    by_detector: dict[tuple[str, Any], Tally] = {}
    for row in rows:
        for detector, alarm in row["alarms"].items():
            key = detector, row.get(by) if by else None
            by_detector.setdefault(key, Tally()).add(row["first"], alarm, clean=row["clean"])
    return by_detector
