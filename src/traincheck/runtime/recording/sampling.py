"""Sampling: which training steps are watched, where not all of them need be.

Note [Which steps are watched]
The first steps, always: most errors are there from the beginning, and what a program does regularly is established
there. Then bursts of two steps, since many rules tell of what happens from one step to the next: burst j, which has the
steps 2j and 2j + 1, is watched where the fractional part of j times the golden ratio is less than 1 / interval.

* It depends on the number of the step only: all ranks watch the same steps, and so does the run that is started again.
* It is nested: whoever has a larger interval watches some of the steps of whoever has a smaller one. So ranks that have
  come to different intervals still have steps in common.
* It has no rhythm that could be that of the program, which may do something every 10 or every 1000 steps: no number is
  worse approximated by fractions than the golden ratio.
* Gaps are bounded: between the beginnings of two watched bursts lie at most three different distances (the three-gap
  theorem: Sos, Swierczkowski, 1958), the largest of which is less than twice the interval, in bursts.

The fraction is taken in whole numbers of 64 bits, which are the same on every machine.
"""

from __future__ import annotations

import threading

from traincheck.errors import BadOption
from traincheck.runtime.recording.overhead_budget import Budget
from traincheck.vocab.events import EVAL, TRAIN

WARM_UP = 20
"""Steps at the start that are watched: twenty establish each habit that rules know of, and an optimizer that did not
step among them is not waited for."""

BURST = 2
_WHOLE = 1 << 64
_GOLDEN = 0x9E3779B97F4A7C15
"""2**64 divided by the golden ratio, whose fractional part is that of its inverse."""


def in_sample(step: int, interval: int) -> bool:
    """Whether `step` is among those that are watched at this interval, see Note [Which steps are watched]."""
    return interval <= 1 or step // BURST * _GOLDEN % _WHOLE < _WHOLE // interval


class Sampling:
    """Says of each step whether it is watched. May be used by several threads; what is set holds from the next step on.

    `interval` is of how many steps one is watched, `budget` the share of the time that it may take (0.01 is one
    percent): the interval is then widened as far as that needs. Raises BadOption for values that mean nothing.
    """

    def __init__(self, interval: int = 1, budget: float | None = None, warm_up: int = WARM_UP) -> None:
        _check(interval, budget)
        if warm_up < 0:
            raise BadOption("warm_up", warm_up, "a whole number, 0 or more")
        self.budget = Budget(budget or None)
        self._interval = interval
        self._warm_up = warm_up
        self._last = 0
        self._close_until = 0
        self._lock = threading.Lock()

    @property
    def interval(self) -> int:
        """The interval that is in force."""
        return max(self._interval, self.budget.interval)

    def watches(self, step: int) -> bool:
        """Whether `step`, which comes next, is watched."""
        with self._lock:
            self._last = step
            return step <= max(self._warm_up, self._close_until) or in_sample(step, self.interval)

    def set(self, interval: int | None = None, budget: float | None = None) -> None:
        """Change what is given; a budget of 0 is none."""
        _check(interval, budget)
        with self._lock:
            if interval is not None:
                self._interval = interval
            if budget is not None:
                self.budget.share = budget or None

    def closer(self, steps: int) -> None:
        """Watch each of so many steps from the next one on."""
        if steps < 1:
            raise BadOption("steps", steps, "a whole number, 1 or more")
        with self._lock:
            self._close_until = max(self._close_until, self._last + steps)

    def took(self, stage: str, watched: bool, wall: float, ours: float) -> None:
        """A window of this stage took so many seconds, and of these our own work."""
        if stage in (TRAIN, EVAL):
            with self._lock:
                self.budget.took(stage, watched, wall, ours)


def _check(interval: int | None, budget: float | None) -> None:
    if interval is not None and interval < 1:
        raise BadOption("interval", interval, "a whole number, 1 or more")
    if budget is not None and not 0 <= budget < 1:
        raise BadOption("budget", budget, "a share of the time from 0 to 1, such as 0.01 for 1 %")
