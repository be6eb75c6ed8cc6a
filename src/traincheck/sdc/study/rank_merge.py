"""Rank merge: what the ranks of a suspect host have found, each of its part, as one result of the host.

It has the form of what a single worker finds, so that whoever reads one reads the other, and says which ranks it was.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from traincheck.sdc.study.mismatch import worst

Found = Mapping[str, Any]

WAYS = ("forward", "backward", "gradient", "update")
"""Directions, whose frequencies in a step are averaged: the ranks have equally many elements of each."""
COUNTS = ("elements", "different", "rated", "not_finite")


def merged(ranks: Sequence[Found]) -> dict[str, Any]:
    """The levels of a host: tables are summed, with the `ranks` that differ; the row of a step is that of the rank that
    is farthest off, with its `rank`. `by_rank` has the levels of each."""
    if len(ranks) == 1:
        return dict(ranks[0])
    return {level: _level([one[level] for one in ranks]) for level in ranks[0]}


def _level(ranks: Sequence[Found]) -> dict[str, Any]:
    found = {**ranks[0], "injected": [_injected(of) for of in _side_by_side(ranks, "injected")]}
    for table in ("by_kind", "by_module"):
        found[table] = [_row(of) for of in _side_by_side(ranks, table)]
    found["series"] = [_farthest(of) for of in _side_by_side(ranks, "series")]
    for name in [name for name in found if name.startswith("worst_")]:
        found[name] = worst(one[name] for one in ranks)
    if "evaluation" in found:
        found["evaluation"] = max(
            (one["evaluation"] for one in ranks), key=lambda told: _size(told["suspect"] - told["trusted"])
        )
    return {**found, "by_rank": [{"rank": rank, **one} for rank, one in enumerate(ranks)]}


def _side_by_side(ranks: Sequence[Found], name: str) -> list[tuple[Any, ...]]:
    """Rows of the same place: all ranks execute the same, so they have the same rows."""
    return list(zip(*(one[name] for one in ranks), strict=True))


def _injected(of: Sequence[Found]) -> dict[str, Any]:
    times = [one["times"] for one in of]
    return {**of[0], "times": sum(times), "times_by_rank": times}


def _row(of: Sequence[Found]) -> dict[str, Any]:
    found = {**of[0], **{name: sum(one[name] for one in of) for name in COUNTS}}
    found["frequency"] = found["different"] / found["elements"] if found["elements"] else 0.0
    relative = sum(one["severity"] * one["rated"] for one in of)
    found["severity"] = relative / found["rated"] if found["rated"] else 0.0
    found["worst"] = worst(one["worst"] for one in of)
    return {**found, "ranks": [rank for rank, one in enumerate(of) if one["different"]]}


def _farthest(of: Sequence[Found]) -> dict[str, Any]:
    place = max(range(len(of)), key=lambda place: _how_far(of[place]))
    shares = {way: sum(one[way] for one in of) / len(of) for way in WAYS if way in of[0]}
    return {**of[place], **shares, "rank": place}


def _how_far(one: Found) -> tuple[float, ...]:
    apart = one.get("noise_to_signal", one.get("relative_distance", 0.0))
    shares = max((one[way] for way in WAYS if way in one), default=0.0)
    return _size(apart), shares, _size(one["suspect_loss"] - one["loss"])


def _size(value: float) -> float:
    return math.inf if math.isnan(value) else abs(value)
