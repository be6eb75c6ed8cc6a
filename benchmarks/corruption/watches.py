"""Detectors that need two ranks: the options of `traincheck.checked` for each, and the faults it is given.

The fault is on rank 1. Training of two ranks takes longer than that of one, so the grids are smaller.
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
"""The watch of which the first two are what its ranks find by themselves and by one another."""

RULES = {
    "an update leaves the same value of a parameter on every rank",
    "a parameter has the same value on every rank before an update",
    "an update uses the same gradient of a parameter on every rank",
}
"""Of the pack `distributed`: what is asked of replicas. That each rank has another batch is not asked of twins."""

ONE_RANK = (
    "computation-wrong-once",
    "device-computes-differently-each-time",
    "computation-stopped-repeating",
)
TWO_RANKS = "ranks-compute-different-results"
"""Diagnoses of `--replay-every`."""

BITS, RATES, SEEDS = (2, 30), (0.05, 0.5), 2
SELDOM, OFTEN = RATES[:1], (0.5, 5.0)


@dataclass(frozen=True)
class Watch:
    """A way to watch a training, and the `detectors` that it is for: which findings are an alarm of each.

    With `reduced` two replicas train on batches of their own and average their gradients, as DistributedDataParallel
    does; without, both train on the same batch and tell each other nothing. Before the step `begins` no fault strikes.
    """

    grid: Grid
    detectors: Mapping[str, Callable[[Mapping[str, Any]], bool]]
    options: Mapping[str, Any] = field(default_factory=dict)
    reduced: bool = True
    begins: int = 0

    def fault(self, point: Point) -> Fault | None:
        """The fault of a point, as it is here."""
        fault = point.fault
        return None if fault is None else replace(fault, first=self.begins)


def repeated(finding: Mapping[str, Any]) -> bool:
    """Whether a rank that executed its step again got something else."""
    return finding["diagnosis"] in ONE_RANK


def repeated_elsewhere(finding: Mapping[str, Any]) -> bool:
    """Whether the next rank got something else."""
    return bool(finding["diagnosis"] == TWO_RANKS)


def between_ranks(finding: Mapping[str, Any]) -> bool:
    """Whether it came of comparing ranks."""
    return bool(finding["compared"])


WATCHES: Mapping[str, Watch] = {
    REPLICAS: Watch(
        Grid(BITS, (*SITES, COMMUNICATION), RATES, SEEDS, stuck=(FORWARD, OPTIMIZER)), {REPLICAS: between_ranks}
    ),
    SAMPLED: Watch(
        Grid(BITS, (OPTIMIZER, COMMUNICATION), SELDOM, SEEDS),
        {SAMPLED: between_ranks},
        {"budget": "1/10,first=2"},
    ),
    TWINS: Watch(Grid(BITS, SITES, SELDOM, SEEDS, stuck=(FORWARD, OPTIMIZER)), {TWINS: between_ranks}, reduced=False),
    REPLAY: Watch(
        Grid(BITS, (*SITES, COMMUNICATION), SELDOM, 1, stuck=(FORWARD, OPTIMIZER)),
        {REPLAYED: repeated, ELSEWHERE: repeated_elsewhere},
        {"replay_every": 1},
    ),
    REPLAYED_SELDOM: Watch(
        Grid(BITS, (FORWARD, OPTIMIZER), OFTEN, 1),
        {REPLAYED_SELDOM: lambda finding: repeated(finding) or repeated_elsewhere(finding)},
        {"replay_every": 10},
        begins=11,
    ),
}

QUICK: Sequence[str] = (REPLICAS,)
