"""Chance: how easily a condition separates by accident, and how much evidence makes it credible.

Note [False discovery]
Assume that a property fails at random, whatever the context. Of N observations F failed. A condition that selects n of
them without looking at the outcome is free of failures with the probability

    p(n) = C(N - F, n) / C(N, n)

because this share of the ways to choose n avoids all F. It falls as n grows. If C of all possible conditions select n
or more, at most C p(n) of them are expected to be free of failures by chance. A condition is *sound* if that number is
`ALPHA` or less. Nothing is assumed about the share of failures. If the property held once in 39 times, few good
observations are enough, for hardly any choice avoids the failures. If it failed once in 200, a single failure proves
something only if little else is left out with it.

The meaning of one observation depends on what fails at random, and the bound has to hold in each case:

* each *occasion* by itself: a thousand parameters in a context are a thousand draws, and a context with one parameter
  escapes failure more easily;
* each *window* of a run as a whole: a thousand parameters in a step are one draw, whatever their contexts. Windows are
  counted for each context. If k contexts share the windows that a condition selects, n is the number of distinct ones,
  at the least, and N and F are divided by k as well (F is no less than the distinct failing windows);
* each *context* for good: for a reason that no fact shows, a property may hold in this context and fail in that one, in
  every step again. This case is skipped if there are too few contexts to prove any condition.
"""

from __future__ import annotations

import math
from typing import NamedTuple

ALPHA = 0.05
"""The expected number of false conditions, at most, for a rule about nothing and each number of clauses. Honest
exceptions may come once a run (its first step). At 0.05, one of them is separated from chance in a run of 20 to 40
steps, and two in two runs of seven. At 0.01, it takes hundreds of steps to learn from one run that a step changes
parameters unless the learning rate is zero."""


class Observed(NamedTuple):
    """The amount of evidence, see Note [False discovery].

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
    return avoids(everything.occasions, everything.failed, selected.occasions)


def by_window(everything: Observed, selected: Observed) -> float:
    """The probability that so many distinct windows are free of failures by chance."""
    if not selected.windows:
        return 1.0
    together = selected.pairs / selected.windows
    failing = max(everything.failing / together, everything.failing_windows)
    return avoids(max(everything.pairs / together, selected.windows + failing), failing, selected.windows)


def by_context(everything: Observed, contexts: int) -> float:
    """The probability that so many contexts are free of failures by chance."""
    return avoids(everything.contexts, everything.bad, contexts)


def avoids(everything: float, failed: float, selected: float) -> float:
    """The probability that `selected` of `everything` avoid all of the `failed` ones by chance.

    C(everything - failed, selected) / C(everything, selected), also between whole numbers. `selected` is at most
    `everything` - `failed`.
    """
    ways = math.lgamma(everything - failed + 1) - math.lgamma(everything - failed - selected + 1)
    return math.exp(ways - math.lgamma(everything + 1) + math.lgamma(everything - selected + 1))
