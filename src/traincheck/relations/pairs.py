"""Pairs: which ranks are set against each other, so that what differs on one of them shows without comparing all.

Note [Twins]
Each rank is compared with the first one and with the next. Where a job is a mesh (replicas of shards, copies of parts),
neither of these need be a replica of it. So each is compared as well with the nearest one before it that has held all
the same parameters in some step, from then on: that is its neighbour along a dimension of the mesh that replicates.
"""

from __future__ import annotations

from collections.abc import Sequence

from traincheck.relations.parts import named
from traincheck.vocab.events import Window

MOST_TWINS = 2
"""Twins that are kept of one rank: a mesh has seldom more than two dimensions that replicate."""


class Pairs:
    """Pairs of places among the windows of several ranks; it remembers who were twins."""

    def __init__(self) -> None:
        self._twins: dict[int, set[int]] = {}  # by rank, those that are no pair for another reason

    def of(self, windows: Sequence[Window]) -> list[tuple[int, int]]:
        """The pairs, sorted."""
        usual = pairs(len(windows))
        places = {window.rank: place for place, window in enumerate(windows)}
        if len(windows) > 3:  # each of three is compared with all others
            self._find_twins(windows, {(windows[one].rank, windows[other].rank) for one, other in usual})
        twins = {
            (places[one], places[rank])
            for rank, found in self._twins.items()
            for one in found
            if {one, rank} <= places.keys()
        }
        return sorted(usual | twins)

    def _find_twins(self, windows: Sequence[Window], usual: set[tuple[int, int]]) -> None:
        last: dict[frozenset[object], int] = {}
        for window in windows:
            held = frozenset(
                (reading.variable, reading.value)
                for reading in window.readings
                if named(reading) == "parameter.used_data"
            )
            if held in last and (last[held], window.rank) not in usual:
                found = self._twins.setdefault(window.rank, set())
                if len(found) < MOST_TWINS:
                    found.add(last[held])
            if held:
                last[held] = window.rank


def pairs(ranks: int) -> set[tuple[int, int]]:
    """Each with the first, and with the next."""
    return {*((0, other) for other in range(1, ranks)), *((one, one + 1) for one in range(ranks - 1))}
