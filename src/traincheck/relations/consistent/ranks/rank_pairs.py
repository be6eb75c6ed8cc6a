"""Choose which pairs of ranks are compared, and remember which variables agreed.

If ranks are known to hold the same values (`Window.shared`), one of them is compared for all, and its outcome holds for
the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, pairwise
from typing import NamedTuple

from traincheck.vocab.events import Window

FEW = 8
"""Up to this number of ranks, each is compared with each."""

Classes = dict[int, frozenset[int]]
"""The ranks that are known to hold the same values, by their leader."""


def classes_of(windows: Sequence[Window]) -> Classes:
    """The ranks of each window that holds values."""
    ranks_by_leader: dict[int, list[int]] = {}
    for window in windows:
        ranks_by_leader.setdefault(window.values_of, []).append(window.rank)
    return {leader: frozenset(ranks) for leader, ranks in ranks_by_leader.items()}


def pairs_of(ranks: Sequence[int]) -> set[tuple[int, int]]:
    """Each rank with each other. With many ranks, each with the first and with the next: a rank that differs appears in
    three pairs."""
    if len(ranks) <= FEW:
        return set(combinations(ranks, 2))
    return {*((ranks[0], other) for other in ranks[1:]), *pairwise(ranks)}


class AgreedVariables:
    """The variables that ranks held alike after an earlier update that changed them."""

    def __init__(self) -> None:
        self._of: dict[frozenset[int], set[str]] = {}
        self._last: dict[int, frozenset[int]] = {}

    def pairs(self, classes: Classes) -> set[tuple[int, int]]:
        """The first two ranks of each class. If a class of the last step was split, each rank with the next: only
        their own windows hold their values."""
        pairs = {(leader, min(ranks - {leader})) for leader, ranks in classes.items() if len(ranks) > 1}
        split_classes = {ranks for leader in classes if len(ranks := self._last.get(leader, frozenset())) > 1}
        for ranks in split_classes:
            pairs.update(pairwise(sorted(ranks.intersection(classes))))
        self._last = {rank: ranks for ranks in classes.values() for rank in ranks}
        return pairs

    def of(self, first: int, second: int, classes: Classes) -> VariableNames:
        """The agreed variables of two ranks. Additions hold for all ranks that equal either of them."""
        ranks = classes[first] | classes.get(second, classes[first])
        more = [names for held, names in self._of.items() if len(held) > 2 and first in held and second in held]
        own = self._of.get(frozenset((first, second)), set())
        return VariableNames([self._of.setdefault(ranks, set()), own, *more])


class VariableNames(NamedTuple):
    """A union of sets. Additions go to the first set."""

    sets: list[set[str]]

    def has(self, name: str) -> bool:
        """Whether one of the sets contains the name."""
        return any(name in names for names in self.sets)

    def add(self, name: str) -> None:
        """Add a name to the first set."""
        self.sets[0].add(name)
