"""Place findings on the step axis of the HTML report. Positions are percentages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from traincheck.vocab.finding import Finding

TICKS = 8
"""Maximum numbers after the first under the axis; more would overlap on a narrow screen."""

LANES = 40
"""Findings with a lane; the cards below show all findings."""


@dataclass(frozen=True, slots=True)
class Lane:
    """A finding on the axis; `number` counts the findings from 1."""

    number: int
    finding: Finding
    left: float
    width: float


@dataclass(frozen=True, slots=True)
class Tick:
    """A labelled step under the axis."""

    step: int
    left: float


@dataclass(frozen=True, slots=True)
class Timeline:
    """The axis with its lanes; `last` is the last step, `beyond` counts the findings without a lane."""

    last: int
    lanes: tuple[Lane, ...]
    ticks: tuple[Tick, ...]
    beyond: int


def timeline(findings: Sequence[Finding], steps: int) -> Timeline:
    """Return the axis from the set-up (step 0) to the last step of the run, or of a later finding."""
    last = max([steps, 1, *(max(finding.step, finding.last_step) for finding in findings)])

    def left(step: int) -> float:
        return round(100 * max(step, 0) / last, 3)

    lanes = tuple(
        Lane(number, finding, left(finding.step), round(max(left(finding.last_step) - left(finding.step), 0), 3))
        for number, finding in enumerate(findings[:LANES], 1)
    )
    ticks = tuple(Tick(step, left(step)) for step in range(0, last + 1, _tick_distance(last)))
    return Timeline(last, lanes, ticks, max(len(findings) - LANES, 0))


def _tick_distance(last: int) -> int:
    """Return the smallest of 1, 2, 5, 10, 20, 50 ... that gives at most `TICKS` ticks after the first."""
    power = 1
    while True:
        for distance in (power, 2 * power, 5 * power):
            if last <= distance * TICKS:
                return distance
        power *= 10
