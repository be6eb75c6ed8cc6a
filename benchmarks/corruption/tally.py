"""Count for each detector the detected faults, the delay, and the false alarms.

A run whose fault never struck is not a positive. An alarm in such a run, in a clean run, or before the first stroke is
false.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Tally:
    """The counts of a detector. A delay is in steps; 0 is the step of the first stroke."""

    struck: int = 0
    detected: int = 0
    delays: list[int] = field(default_factory=list)
    never_struck: int = 0
    clean: int = 0
    false_alarms: int = 0

    def add(self, first: int | None, alarm: int | None, *, clean: bool = False) -> None:
        """Add a run: the steps of the first stroke and the first alarm, or None."""
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
        """The share of detected faults, or None without faults."""
        return self.detected / self.struck if self.struck else None

    def data(self) -> dict[str, Any]:
        """Return the counts for JSON."""
        return {
            "struck": self.struck,
            "found": self.detected,
            "delay": {"median": statistics.median(self.delays), "most": max(self.delays)} if self.delays else None,
            "never_struck": self.never_struck,
            "clean": self.clean,
            "false_alarms": self.false_alarms,
        }


def tallies(rows: Iterable[Mapping[str, Any]], by: str | None = None) -> dict[tuple[str, Any], Tally]:
    """Return tallies by detector, and by the field `by` of the rows if given.

    A row has `clean`, `first`, and `alarms`, the first alarm of each detector.
    """
    by_detector: dict[tuple[str, Any], Tally] = {}
    for row in rows:
        for detector, alarm in row["alarms"].items():
            key = detector, row.get(by) if by else None
            by_detector.setdefault(key, Tally()).add(row["first"], alarm, clean=row["clean"])
    return by_detector
