"""Confidence: the probability that a further good run obeys a rule, and what follows for its severity.

Note [Confidence]
A rule was obeyed by s distinct programs, in t distinct training steps, without exception. With a uniform prior over the
unknown share of programs that obey it, Laplace's rule of succession gives (s + 1) / (s + 2) for the next program, and
likewise (t + 1) / (t + 2) for a further step of one that does. Both must come true, so confidence is their product.
Occasions are not counted: a thousand parameters in one step are one observation of what the program does.

A finding of severity *error* fails a user's run, so it takes `ERROR_CONFIDENCE` = 3/4. That is three programs at 14
steps between them: (4/5) (15/16) = 3/4 exactly; two programs never reach it (3/4 at infinitely many steps), which is
what "supported by several distinct runs" means.

For rules about the user's own functions the distinct runs of that pipeline take the place of distinct programs.
"""

from __future__ import annotations

from traincheck.vocab.invariant import ERROR, NOTICE, Support

ERROR_CONFIDENCE = 0.75
LEAST_STEPS = 2
"""Rules seen in a single step are coincidences: nothing in them has ever been repeated."""


def confidence(programs: int, steps: int) -> float:
    """See Note [Confidence]."""
    return (programs + 1) / (programs + 2) * (steps + 1) / (steps + 2)


def of_support(support: Support, *, pipeline: bool) -> float:
    """The confidence of a rule with this support."""
    return confidence(support.runs if pipeline else support.scripts, support.steps)


def severity(certainty: float, *, habit: bool = False) -> str:
    """error or notice. A change of habit (a call that was regular is made no more) may be meant, so it is a notice."""
    return ERROR if certainty >= ERROR_CONFIDENCE and not habit else NOTICE
