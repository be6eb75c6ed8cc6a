"""The usual alarms on loss and gradient norm, to compare TrainCheck with.

Each alarms on a value that is not finite, and, from the eleventh step on, on one that lies further above the median of
up to twenty steps before it than so many robust standard deviations (1.4826 times the median absolute deviation). How
many is tuned: as few as leave all clean runs of the same program without an alarm. That favours these alarms, as they
are judged by the runs that they were tuned on.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence

LOSS, NORM = "loss alarm", "gradient norm alarm"

WINDOW, WARM = 20, 10
"""Steps that are looked back on, and those before which nothing is judged but what is not finite."""
SIGMA = 1.4826
"""Median absolute deviations of a normal distribution in a standard deviation."""
LEAST = 1e-3
"""Of the median: the least spread that is believed, for values that hardly move."""


def scores(values: Sequence[float]) -> list[float]:
    """Of each step how many robust standard deviations it lies above the steps before; infinite what is not finite."""
    return [_score(values, at) for at in range(len(values))]


def _score(values: Sequence[float], at: int) -> float:
    if not math.isfinite(values[at]):
        return math.inf
    before = [value for value in values[max(0, at - WINDOW) : at] if math.isfinite(value)]
    if at < WARM or not before:
        return -math.inf
    middle = statistics.median(before)
    spread = SIGMA * statistics.median(abs(value - middle) for value in before)
    return (values[at] - middle) / max(spread, LEAST * abs(middle), 1e-30)


def threshold(clean: Iterable[Sequence[float]]) -> float:
    """The smallest multiple of 0.1 that no score of the clean runs is above."""
    highest = max((score for values in clean for score in scores(values)), default=0.0)
    return math.ceil(highest * 10) / 10 if math.isfinite(highest) else highest


def first_alarm(values: Sequence[float], limit: float) -> int | None:
    """The first step, from 1 on, whose score is above the limit."""
    for step, score in enumerate(scores(values), 1):
        if score > limit or score == math.inf:
            return step
    return None
