"""Define the detectors that need two ranks: their options for `traincheck.checked`, and their faults.

The fault is on rank 1. Training with two ranks takes longer than with one, so the grids are smaller.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from benchmarks.corruption.grid import SITES, Grid, Point
from traincheck.sdc.faults.fault import COMMUNICATION, FORWARD, OPTIMIZER, Fault

REPLICAS, SAMPLED, TWINS = "replicas", "replicas, one step in ten", "twins"
REPLAYED, ELSEWHERE, REPLAYED_SELDOM = "replay, same worker", "replay, next rank", "replay, one step in ten"
REPLAY = "replay"
"""The check with two detectors: a replay on the same rank, and a replay on the next rank."""

RULES = {
    "an update leaves the same value of a parameter on every rank",
    "a parameter has the same value on every rank before an update",
    "an update uses the same gradient of a parameter on every rank",
}
"""The rules about replicas in the pack `distributed`. The rule about different batches does not apply to twins."""

ONE_RANK = (
    "computation-wrong-once",
    "device-computes-differently-each-time",
    "computation-stopped-repeating",
)
TWO_RANKS = "ranks-compute-different-results"
"""Diagnoses of `--verify-every`."""

BITS, RATES, SEEDS = (2, 30), (0.05, 0.5), 2
SELDOM, OFTEN = RATES[:1], (0.5, 5.0)
ALL_SITES = (*SITES, COMMUNICATION)


@dataclass(frozen=True)
class RankCheck:
    """A setup of two ranks, and its `detectors`: the findings that count as an alarm of each.

    With `reduced`, two replicas train on separate batches and average their gradients, like DistributedDataParallel.
    Otherwise both train on the same batch without communication. No fault strikes before the step `begins`.
    """

    grid: Grid
    detectors: Mapping[str, Callable[[Mapping[str, Any]], bool]]
    options: Mapping[str, Any] = field(default_factory=dict)
    reduced: bool = True
    begins: int = 0

    def fault(self, point: Point) -> Fault | None:
        """Return the fault of a point in this setup."""
        fault = point.fault
        return None if fault is None else replace(fault, first=self.begins)


def repeated(finding: Mapping[str, Any]) -> bool:
    """Return whether a rank got another result when it replayed its own step."""
    return finding["diagnosis"] in ONE_RANK


def repeated_elsewhere(finding: Mapping[str, Any]) -> bool:
    """Return whether the next rank got another result."""
    return bool(finding["diagnosis"] == TWO_RANKS)


def between_ranks(finding: Mapping[str, Any]) -> bool:
    """Return whether the finding compares ranks."""
    return bool(finding["compared"])


RANK_CHECKS: Mapping[str, RankCheck] = {
    REPLICAS: RankCheck(
        Grid(BITS, ALL_SITES, RATES, SEEDS, stuck=(FORWARD, OPTIMIZER), intermittent=ALL_SITES),
        {REPLICAS: between_ranks},
    ),
    SAMPLED: RankCheck(
        Grid(BITS, (OPTIMIZER, COMMUNICATION), SELDOM, SEEDS),
        {SAMPLED: between_ranks},
        {"budget": "1/10,first=2"},
    ),
    TWINS: RankCheck(
        Grid(BITS, SITES, SELDOM, SEEDS, stuck=(FORWARD, OPTIMIZER), intermittent=SITES),
        {TWINS: between_ranks},
        reduced=False,
    ),
    REPLAY: RankCheck(
        Grid(BITS, ALL_SITES, SELDOM, SEEDS, stuck=(FORWARD, OPTIMIZER), intermittent=ALL_SITES),
        {REPLAYED: repeated, ELSEWHERE: repeated_elsewhere},
        {"verify_every": 1},
    ),
    REPLAYED_SELDOM: RankCheck(
        Grid(BITS, (FORWARD, OPTIMIZER), OFTEN, 1, intermittent=(FORWARD, OPTIMIZER)),
        {REPLAYED_SELDOM: lambda finding: repeated(finding) or repeated_elsewhere(finding)},
        {"verify_every": 10},
        begins=11,
    ),
}

QUICK: Sequence[str] = (REPLICAS,)
