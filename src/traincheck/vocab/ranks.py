"""Ranks in words, as findings and reports name them."""

from __future__ import annotations

from collections.abc import Iterable

MOST_NAMED = 8
"""Ranks that are named one by one: a job may have thousands."""


def named_ranks(ranks: Iterable[int]) -> str:
    """`rank 1`, `ranks 0, 2`, or `ranks 0, 1, 2, 3, 4, 5, 6, 7 and 1016 more`."""
    found = sorted(ranks)
    more = f" and {len(found) - MOST_NAMED} more" if len(found) > MOST_NAMED else ""
    return f"rank{'s' * (len(found) > 1)} {', '.join(map(str, found[:MOST_NAMED]))}{more}"
