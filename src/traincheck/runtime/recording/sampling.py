"""Selects the training steps to observe.

Note [Sampled steps]
TrainCheck always observes the first steps: most errors begin there, and they establish the regular behaviour of a
program. Later it observes bursts of two steps, because many rules compare consecutive steps. Burst j has the steps 2j
and 2j + 1. It is observed if the fractional part of j times the golden ratio is less than 1 / interval.

* The selection depends on the step number only. All ranks observe the same steps, and so does a restarted run.
* The selection is nested: a larger interval selects a subset of the steps of a smaller interval. So ranks with
  different intervals still share steps.
* The selection has no period that could match the program's, which may act every 10 or every 1000 steps. Fractions
  approximate no number worse than the golden ratio.
* Evaluations and checkpoints are rare, and a sample may have none. So the first few that begin after an unobserved step
  are observed, with the burst that follows.
* Gaps are bounded. The starts of two consecutive bursts have at most three different distances (the three-gap theorem:
  Sos, Swierczkowski, 1958). The largest distance is less than twice the interval, in bursts.

The fraction uses 64-bit integers, which are the same on every machine.
"""

from __future__ import annotations

import threading
from collections import Counter

from traincheck.errors import BadOption
from traincheck.runtime.recording.overhead_budget import IN_DEBT, WIDEST, Budget
from traincheck.vocab.events import EVAL, TRAIN

WARM_UP = 20
"""Observed steps at the start. Twenty steps establish each habit that rules use. Rules do not wait for an optimizer
that did not step among them."""

RARE_EVENTS = 3
"""Rare events of each kind that are observed whatever the interval is."""

BURST = 2
_WHOLE = 1 << 64
_GOLDEN = 0x9E3779B97F4A7C15
"""2**64 divided by the golden ratio. The golden ratio and its inverse have the same fractional part."""


def in_sample(step: int, interval: int) -> bool:
    """Whether `step` is observed at this interval, see Note [Sampled steps]."""
    return interval <= 1 or step // BURST * _GOLDEN % _WHOLE < _WHOLE // interval


class Sampling:
    """Decides for each step whether it is observed. You may use it from several threads; changes apply from the next
    step.

    One step in `interval` is observed. `budget` is the allowed share of the time (0.01 is one percent), and widens the
    interval if necessary. Raises BadOption for invalid values.
    """

    def __init__(self, interval: int = 1, budget: float | None = None, warm_up: int = WARM_UP) -> None:
        _check(interval, budget)
        if warm_up < 0:
            raise BadOption("warm_up", warm_up, "a whole number, 0 or more")
        self.budget = Budget(budget or None)
        self._interval = interval
        self._warm_up = warm_up
        self._close_until = 0
        self._close_steps = 0  # requested from the next step on
        self._rare_events: Counter[str] = Counter()
        self._lock = threading.Lock()

    @property
    def interval(self) -> int:
        """Current interval."""
        return max(self._interval, self.budget.interval)

    def watches(self, step: int) -> bool:
        """Whether the next step, `step`, is observed."""
        with self._lock:
            if self._close_steps:
                self._close_until = max(self._close_until, step - 1 + self._close_steps)
                self._close_steps = 0
            return step <= max(self._warm_up, self._close_until) or in_sample(step, self._current_interval())

    def quiet_steps(self, first: int, most: int) -> int:
        """How many steps in a row from `first` on are not observed, at most `most`."""
        with self._lock:
            interval = self._current_interval()
            if interval <= 1 or self._close_steps or first <= max(self._warm_up, self._close_until):
                return 0
            for burst in range(first // BURST, (first + most) // BURST + 1):
                if in_sample(burst * BURST, interval):
                    return min(most, max(0, burst * BURST - first))
            return most

    def _current_interval(self) -> int:
        """The interval that holds for the next step: a wider one while the budget is spent."""
        return min(IN_DEBT * self.interval, WIDEST) if self.budget.is_spent and self.interval > 1 else self.interval

    def set(self, interval: int | None = None, budget: float | None = None) -> None:
        """Change the interval or the budget; a budget of 0 removes the limit."""
        _check(interval, budget)
        with self._lock:
            if interval is not None:
                self._interval = interval
            if budget is not None:
                self.budget.share = budget or None

    def closer(self, steps: int) -> None:
        """Observe each of the next `steps` steps."""
        if steps < 1:
            raise BadOption("steps", steps, "a whole number, 1 or more")
        with self._lock:
            self._close_steps = max(self._close_steps, steps)

    def observes_rare_event(self, kind: str) -> bool:
        """Whether a rare event is observed that happens in an unobserved step. Then the steps that follow are, too."""
        self._rare_events[kind] += 1
        if self._rare_events[kind] > RARE_EVENTS:
            return False
        self.closer(BURST)
        return True

    def took(self, stage: str, watched: bool, wall: float, ours: float, windows: int = 1) -> None:
        """Add a window's duration and our own share of it, in seconds: the means of so many windows."""
        if stage in (TRAIN, EVAL):
            with self._lock:
                self.budget.took(stage, watched, wall, ours, windows)


def _check(interval: int | None, budget: float | None) -> None:
    if interval is not None and interval < 1:
        raise BadOption("interval", interval, "a whole number, 1 or more")
    if budget is not None and not 0 <= budget < 1:
        raise BadOption("budget", budget, "a share of the time from 0 to 1, such as 0.01 for 1 %")
