"""Pairs: which ranks are set against each other, so that what differs on one of them shows without comparing all.

Note [Twins]
Each rank is compared with the first one and with the next. Where a job is a mesh (replicas of shards, copies of parts),
neither of these need be a replica of it. So each is compared as well with the nearest one before it that has held all
the same parameters in some step, from then on: that is its neighbour along the dimension of the mesh that replicates.
"""

from __future__ import annotations

from collections.abc import Sequence

from traincheck.relations.parts import named
from traincheck.vocab.events import Window

_USED_DATA = "parameter.used_data"


class Pairs:
    """Pairs of places among the windows of several ranks; it remembers who were twins."""

    def __init__(self) -> None:
        self._twins: dict[int, int] = {}  # by rank

    def of(self, windows: Sequence[Window]) -> list[tuple[int, int]]:
        """The pairs, sorted: a single rank that differs shows in four of them at the most."""
        if len(windows) > 2 and len(self._twins) < len(windows) - 1:
            self._find_twins(windows)
        places = {window.rank: place for place, window in enumerate(windows)}
        twins = {(places[one], places[rank]) for rank, one in self._twins.items() if one in places and rank in places}
        return sorted({*pairs(len(windows)), *twins})

    def _find_twins(self, windows: Sequence[Window]) -> None:
        last: dict[frozenset[object], int] = {}
        for window in windows:
            told = frozenset(
                (reading.variable, reading.value) for reading in window.readings if named(reading) == _USED_DATA
            )
            if told:
                if told in last:
                    self._twins.setdefault(window.rank, last[told])
                last[told] = window.rank


def pairs(ranks: int) -> set[tuple[int, int]]:
    """Each with the first, and with the next."""
    return {*((0, other) for other in range(1, ranks)), *((one, one + 1) for one in range(ranks - 1))}
