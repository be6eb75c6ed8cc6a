"""Which ranks differ from the others, and how texts name ranks."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import NamedTuple

MAX_NAMED = 8
"""Ranks, or ranges of them, that a text names one by one: a job may have thousands."""


class DifferingRanks(NamedTuple):
    """The ranks that differ from most of the `compared` ones; all of these if no value has a majority."""

    ranks: tuple[int, ...] = ()
    compared: int = 0

    @property
    def is_minority(self) -> bool:
        """Whether most of the ranks agree, so that these are the ones to look at. Of two ranks, neither is."""
        return 0 < 2 * len(self.ranks) < self.compared


NONE_DIFFER = DifferingRanks()


def ranks_that_differ(values: Sequence[tuple[int, Hashable]]) -> DifferingRanks:
    """The ranks with another value than most; `values` are by rank."""
    largest, others = _sides(values)
    return DifferingRanks(
        tuple(others if 2 * len(largest) > len(values) else [rank for rank, _ in values]), len(values)
    )


def ranks_that_share(values: Sequence[tuple[int, Hashable]]) -> DifferingRanks:
    """The ranks that share a value with another one although each should have its own."""
    shared = {rank for ranks in _groups(values) if len(ranks) > 1 for rank in ranks}
    return DifferingRanks(tuple(rank for rank, _ in values if rank in shared), len(values))


def differing_ranks_text(values: Sequence[tuple[int, Hashable]]) -> str:
    """The result of `ranks_that_differ` in words. Without a majority, it names the groups of ranks that agree."""
    largest, others = _sides(values)
    if ranks_that_differ(values).is_minority:
        verb = "differs" if len(others) == 1 else "differ"
        return f"{named_ranks(others)} {verb} from {named_ranks(largest)}"
    return f"{' and '.join(named_ranks(ranks) for ranks in _groups(values)[:MAX_NAMED])} differ"


def _groups(values: Sequence[tuple[int, Hashable]]) -> list[list[int]]:
    ranks_by_value: dict[Hashable, list[int]] = {}
    for rank, value in values:
        ranks_by_value.setdefault(value, []).append(rank)
    return list(ranks_by_value.values())


def _sides(values: Sequence[tuple[int, Hashable]]) -> tuple[list[int], list[int]]:
    """The ranks of the most frequent value, and all others."""
    largest = max(_groups(values), key=len, default=[])
    among = set(largest)
    return largest, [rank for rank, _ in values if rank not in among]


def named_ranks(ranks: Iterable[int]) -> str:
    """`rank 1`, `ranks 0, 2`; of many `ranks 0-1022`, or `ranks 0, 2, 4, 6, 8, 10, 12, 14 and 504 more`."""
    in_order = sorted(ranks)
    return f"rank{'s' * (len(in_order) > 1)} {rank_numbers(in_order)}"


def rank_numbers(ranks: Iterable[int]) -> str:
    """The text of `named_ranks` without the noun."""
    in_order = sorted(ranks)
    spans = [(rank, rank) for rank in in_order] if len(in_order) <= MAX_NAMED else _spans(in_order)
    named = [str(first) if first == last else f"{first}-{last}" for first, last in spans[:MAX_NAMED]]
    beyond = sum(last - first + 1 for first, last in spans[MAX_NAMED:])
    return ", ".join(named) + (f" and {beyond} more" if beyond else "")


def _spans(ranks: Iterable[int]) -> list[tuple[int, int]]:
    """The first and last rank of each sequence of consecutive ranks."""
    spans: list[tuple[int, int]] = []
    for rank in ranks:
        if spans and rank == spans[-1][1] + 1:
            spans[-1] = (spans[-1][0], rank)
        else:
            spans.append((rank, rank))
    return spans
