"""Merge the results of the ranks of a suspect host into one result of the host.

The merged result has the form of a single worker's result, and names the ranks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from traincheck.sdc.study.mismatch import worst

Result = Mapping[str, Any]

WAYS = ("forward", "backward", "gradient", "update")
"""Directions whose frequencies in a step are averaged: the ranks have equally many elements of each."""
COUNTS = ("elements", "different", "rated", "not_finite")


def merged(ranks: Sequence[Result]) -> dict[str, Any]:
    """Return the levels of a host.

    Tables are summed and list the `ranks` that differ. The row of a step comes from the rank with the largest
    difference. `by_rank` holds the levels of each rank.
    """
    if len(ranks) == 1:
        return dict(ranks[0])
    return {level: _level([result[level] for result in ranks]) for level in ranks[0]}


def _level(ranks: Sequence[Result]) -> dict[str, Any]:
    level = {**ranks[0], "injected": [_injected(of) for of in _side_by_side(ranks, "injected")]}
    for table in ("by_kind", "by_module"):
        level[table] = [_row(of) for of in _side_by_side(ranks, table)]
    level["series"] = [_farthest(of) for of in _side_by_side(ranks, "series")]
    for name in [name for name in level if name.startswith("worst_")]:
        level[name] = worst(result[name] for result in ranks)
    if "evaluation" in level:
        level["evaluation"] = max(
            (result["evaluation"] for result in ranks), key=lambda losses: _size(losses["suspect"] - losses["trusted"])
        )
    return {**level, "by_rank": [{"rank": rank, **result} for rank, result in enumerate(ranks)]}


def _side_by_side(ranks: Sequence[Result], name: str) -> list[tuple[Any, ...]]:
    """Return corresponding rows of the ranks: all ranks execute the same work, so they have the same rows."""
    return list(zip(*(result[name] for result in ranks), strict=True))


def _injected(of: Sequence[Result]) -> dict[str, Any]:
    times = [entry["times"] for entry in of]
    return {**of[0], "times": sum(times), "times_by_rank": times}


def _row(of: Sequence[Result]) -> dict[str, Any]:
    row = {**of[0], **{name: sum(part[name] for part in of) for name in COUNTS}}
    row["frequency"] = row["different"] / row["elements"] if row["elements"] else 0.0
    relative = sum(part["severity"] * part["rated"] for part in of)
    row["severity"] = relative / row["rated"] if row["rated"] else 0.0
    row["worst"] = worst(part["worst"] for part in of)
    return {**row, "ranks": [rank for rank, part in enumerate(of) if part["different"]]}


def _farthest(of: Sequence[Result]) -> dict[str, Any]:
    rank = max(range(len(of)), key=lambda rank: _how_far(of[rank]))
    shares = {way: sum(row[way] for row in of) / len(of) for way in WAYS if way in of[0]}
    return {**of[rank], **shares, "rank": rank}


def _how_far(row: Result) -> tuple[float, ...]:
    distance = row.get("noise_to_signal", row.get("relative_distance", 0.0))
    shares = max((row[way] for way in WAYS if way in row), default=0.0)
    return _size(distance), shares, _size(row["suspect_loss"] - row["loss"])


def _size(value: float) -> float:
    return math.inf if math.isnan(value) else abs(value)
