"""Whether ranks that hold parts of one gradient clip it by the norm of the whole gradient.

Each rank records its factor and its share of the squared norm (sources/gradients/shard_norms.py). Different factors
change the direction of the gradient. A factor above limit / norm leaves a gradient above the limit. A factor below it
is wrong if the norm is that of these gradients alone; a program may also clip parts of a model by the norm of all.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import zip_longest

from traincheck.relations.base import context_of, outcome_of
from traincheck.relations.parts import named, number
from traincheck.vocab.builtin_rules import BY_ONE_NORM, CLIPPED_SHARDS
from traincheck.vocab.events import Reading, Window
from traincheck.vocab.facts import value_of
from traincheck.vocab.occasion import Occasion
from traincheck.vocab.ranks import DifferingRanks, named_ranks

TOLERANCE = 2e-2
"""Factors that differ by no more than this are equal up to rounding: a bfloat16 has 8 bits."""


def compare_clipping(windows: Sequence[Window]) -> Iterator[Occasion]:
    """Yield an occasion for each call of clipping in windows of several ranks at the same step, if all ranks with parts
    of the gradients have recorded it."""
    calls: dict[str, dict[int, list[Reading]]] = {}
    for window in windows:
        for reading in window.readings:
            if named(reading) == CLIPPED_SHARDS.api:
                calls.setdefault(reading.variable, {}).setdefault(window.rank, []).append(reading)
    for ranks, by_rank in sorted(calls.items()):
        if ranks.split(",") == [str(rank) for rank in sorted(by_rank)]:
            for together in zip_longest(*(by_rank[rank] for rank in sorted(by_rank))):
                if None not in together:
                    yield _judged(sorted(by_rank), together, windows[0])


def _judged(ranks: Sequence[int], together: Sequence[Reading], first: Window) -> Occasion:
    note = _difference(ranks, together)
    differing = DifferingRanks(tuple(ranks), len(ranks)) if note else DifferingRanks()
    outcome = outcome_of(BY_ONE_NORM, not note)
    context = context_of((), first.stage)
    return Occasion(CLIPPED_SHARDS, context, *outcome, together[0].call, note=note, differing=differing)


def _difference(ranks: Sequence[int], together: Sequence[Reading]) -> str:
    """What is wrong with the factors; empty if nothing is."""
    factors = {
        rank: factor
        for rank, reading in zip(ranks, together, strict=True)
        if (factor := number(reading.value)) is not None
    }
    if not factors:
        return ""
    low, high = (choose(factors, key=lambda rank: factors[rank]) for choose in (min, max))
    if factors[high] - factors[low] > TOLERANCE * factors[high]:
        return (
            f"{named_ranks([low])} scaled its part of the gradient by {factors[low]:.3g}, and {named_ranks([high])} by "
            f"{factors[high]:.3g}"
        )
    limits = {value_of(reading.context, "limit") for reading in together}
    shares = [number(value_of(reading.context, "share")) for reading in together]
    limit = number(limits.pop())
    if limits or limit is None or None in shares or not value_of(together[0].context, "euclidean"):
        return ""
    norm = math.sqrt(sum(share for share in shares if share is not None))
    expected = min(1.0, limit / (norm + 1e-6))
    is_too_low = factors[high] < expected * (1 - TOLERANCE) and value_of(together[0].context, "whole")
    if factors[low] > expected * (1 + TOLERANCE) or is_too_low:
        return (
            f"the gradient of all ranks has a norm of {norm:.3g}, so the limit of {limit:.3g} asks for a factor of "
            f"{expected:.3g}; the ranks scaled it by {factors[low]:.3g}"
        )
    return ""
