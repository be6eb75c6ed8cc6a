"""Compute the usual alarms on loss and gradient norm, the baselines for TrainCheck.

Each alarm reports values that are not finite. From the eleventh step on, it also reports a value far above the median
of up to twenty earlier steps. The threshold is a number of robust standard deviations (1.4826 times the median absolute
deviation). It is tuned to the smallest number without an alarm in the clean runs of the same program. This favours the
alarms, because they are judged by the runs that they were tuned on.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence

LOSS, NORM = "loss alarm", "gradient norm alarm"

WINDOW, WARM = 20, 10
"""Steps before the judged one, and the number of first steps in which only non-finite values count."""
SIGMA = 1.4826
"""The standard deviation of a normal distribution in median absolute deviations."""
LEAST = 1e-3
"""Minimum spread relative to the median, for nearly constant values."""


def scores(values: Sequence[float]) -> list[float]:
    """Return for each step its distance above earlier steps in robust standard deviations; infinite if not finite."""
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
    """Return the smallest multiple of 0.1 that no score of the clean runs exceeds."""
    highest = max((score for values in clean for score in scores(values)), default=0.0)
    return math.ceil(highest * 10) / 10 if math.isfinite(highest) else highest


def first_alarm(values: Sequence[float], limit: float) -> int | None:
    """Return the first step, counted from 1, with a score above the limit, or None."""
    for step, score in enumerate(scores(values), 1):
        if score > limit or score == math.inf:
            return step
    return None
