"""Ranks that are alike: which pairs of them are compared, and what is remembered of which.

Where ranks are known to hold the same (`Window.shared`), one is compared for all of them, and what is found holds for
the others too.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, pairwise
from typing import NamedTuple

from traincheck.vocab.events import Window

FEW = 8
"""Ranks of which each is compared with each."""

Classes = dict[int, frozenset[int]]
"""The ranks that are known to be alike, by the one that tells for them."""


def classes_of(windows: Sequence[Window]) -> Classes:
    """Which of the windows tell for which ranks."""
    ranks_by_leader: dict[int, list[int]] = {}
    for window in windows:
        ranks_by_leader.setdefault(window.values_of, []).append(window.rank)
    return {leader: frozenset(ranks) for leader, ranks in ranks_by_leader.items()}


def pairs_of(ranks: Sequence[int]) -> set[tuple[int, int]]:
    """Each with each; of many, each with the first and with the next: one that differs shows in three pairs."""
    if len(ranks) <= FEW:
        return set(combinations(ranks, 2))
    return {*((ranks[0], other) for other in ranks[1:]), *pairwise(ranks)}


class AgreedVariables:
    """Which variables ranks held alike after an earlier update that changed them."""

    def __init__(self) -> None:
        self._of: dict[frozenset[int], set[str]] = {}
        self._last: dict[int, frozenset[int]] = {}

    def pairs(self, classes: Classes) -> set[tuple[int, int]]:
        """Of those that are alike the first two, and of those that were alike in the last step, but are no more, each
        with the next: what they hold is in their windows only."""
        pairs = {(leader, min(ranks - {leader})) for leader, ranks in classes.items() if len(ranks) > 1}
        split_classes = {ranks for leader in classes if len(ranks := self._last.get(leader, frozenset())) > 1}
        for ranks in split_classes:
            pairs.update(pairwise(sorted(ranks.intersection(classes))))
        self._last = {rank: ranks for ranks in classes.values() for rank in ranks}
        return pairs

    def of(self, first: int, second: int, classes: Classes) -> VariableNames:
        """Those of two ranks; what is added to them is so of all ranks that are like either."""
        ranks = classes[first] | classes.get(second, classes[first])
        more = [names for held, names in self._of.items() if len(held) > 2 and first in held and second in held]
        own = self._of.get(frozenset((first, second)), set())
        return VariableNames([self._of.setdefault(ranks, set()), own, *more])


class VariableNames(NamedTuple):
    """A union of sets, of which the first takes what is added."""

    sets: list[set[str]]

    def has(self, name: str) -> bool:
        """Whether it is in one of them."""
        return any(name in names for names in self.sets)

    def add(self, name: str) -> None:
        """Put it into the first."""
        self.sets[0].add(name)
