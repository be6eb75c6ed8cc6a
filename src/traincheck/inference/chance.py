"""Chance: how easily a condition separates where there is nothing to separate, and what it takes to be believed.

Note [False discovery]
Take it that a property fails at random, whatever the context. Of N observations F failed; a condition that selects n of
them without looking at the outcome is free of failures with the probability

    p(n) = C(N - F, n) / C(N, n)

because so many of the ways to choose n avoid all F. It falls as n grows. If C of all the conditions that can be said
select n or more, C p(n) of them at most are to be expected free of failures by chance; a condition is *sound* where
that is `ALPHA` or less. Nothing is assumed about the share of failures: where the property held once in 39 times, few
good observations are enough, for hardly any choice avoids the failures; where it failed once in 200, a single failure
proves something only if little else is left out with it.

What one observation is depends on what fails at random, and the bound is to hold in each case:

* each *occasion* by itself: a thousand parameters in a context are a thousand draws, and a context with one parameter
  escapes failure more easily;
* each *window* of a run as a whole: a thousand parameters in a step are one draw, whatever their contexts. Windows are
  counted for each context; where k contexts share the windows that a condition selects, n is the number of distinct
  ones, at the least, and N and F are divided by k as well (F is no less than the failing windows that are distinct);
* each *context* once and for all: for a reason that the facts do not tell, a property may hold in this and fail in
  that, in every step again. It is not asked where contexts are too few for any condition to be proven so.
"""

from __future__ import annotations

import math
from typing import NamedTuple

ALPHA = 0.05
"""False conditions to be expected, at most, for a rule about nothing and each number of clauses. Honest exceptions may
come once a run (its first step). At 0.05 one of them is told from chance in a run of 20 to 40 steps, and two in two
runs of seven; at 0.01 it takes hundreds of steps to learn from one run that a step changes parameters unless the
learning rate is zero."""


class Observed(NamedTuple):
    """How much was observed, see Note [False discovery].

    `pairs` counts windows for each context, `failing` those with a failure. `windows` and `failing_windows` count
    distinct windows, at the least. `bad` are the contexts with any failure.
    """

    occasions: int
    failed: int
    pairs: int
    failing: int
    windows: int
    failing_windows: int
    contexts: int
    bad: int


def by_occasion(everything: Observed, selected: Observed) -> float:
    """The probability that so many occasions are free of failures by chance."""
    return _avoids(everything.occasions, everything.failed, selected.occasions)


def by_window(everything: Observed, selected: Observed) -> float:
    """The probability that so many distinct windows are free of failures by chance."""
    if not selected.windows:
        return 1.0
    together = selected.pairs / selected.windows
    failing = max(everything.failing / together, everything.failing_windows)
    return _avoids(max(everything.pairs / together, selected.windows + failing), failing, selected.windows)


def by_context(everything: Observed, contexts: int) -> float:
    """The probability that so many contexts are free of failures by chance."""
    return _avoids(everything.contexts, everything.bad, contexts)


def _avoids(everything: float, failed: float, selected: float) -> float:
    """C(everything - failed, selected) / C(everything, selected), also between whole numbers."""
    ways = math.lgamma(everything - failed + 1) - math.lgamma(everything - failed - selected + 1)
    return math.exp(ways - math.lgamma(everything + 1) + math.lgamma(everything - selected + 1))
