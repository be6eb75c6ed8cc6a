"""Confidence: the probability that a further good run obeys a rule, and the severity that follows from it.

Note [Confidence]
*General* rules. In s distinct programs and t distinct training steps, the rule held without exception. With a uniform
prior over the unknown share of programs that obey it, Laplace's rule of succession gives (s + 1) / (s + 2) for the next
program. A further step of a program that obeys it gets (t + 1) / (t + 2). Both must come true, so confidence is their
product. Occasions are not counted: a thousand parameters in one step are one observation of a program.

*Pipeline* rules. The next run is of the same program, so the whole run is the observation, however many steps it had.
Three runs show an event that occurs once in a run (an initialisation, a checkpoint) as well as one of each step. But
runs of one pipeline share more than programs do (data, machine, configuration). So the prior is not uniform but counts
one run that disobeyed: r runs give r / (r + 1).

*Named* books. A user who names a book declares the learned programs to be an example for the checked one. Whether the
next program is similar is no longer the question. So a rule that refers to torch alone counts as if `NAMED_PROGRAMS`
programs had supported it, which is what an error takes in a book that nobody named. Its steps count as always: from 14
on it is an error.

A finding of severity *error* fails a user's run, so it takes `ERROR_CONFIDENCE` = 3/4. That is three programs at 14
steps between them, (4/5) (15/16) = 3/4 exactly, or three runs of the user's own pipeline. Two of either never reach it:
"supported by several distinct runs" means three.
"""

from __future__ import annotations

from traincheck.vocab.invariant import ERROR, NOTICE, Support

ERROR_CONFIDENCE = 0.75
NAMED_PROGRAMS = 3
MIN_STEPS = 2
"""A rule from a single step is a coincidence: nothing in it was repeated."""


def of_programs(programs: int, steps: int) -> float:
    """The confidence of a general rule, see Note [Confidence]."""
    return (programs + 1) / (programs + 2) * (steps + 1) / (steps + 2)


def of_runs(runs: int) -> float:
    """The confidence of a rule of one pipeline, see Note [Confidence]."""
    return runs / (runs + 1)


def of_named(support: Support) -> float:
    """The confidence of a rule that refers to torch alone in a book that the user named, see Note [Confidence]."""
    return round(of_programs(max(support.scripts, NAMED_PROGRAMS), support.steps), 4)


def of_support(support: Support, *, pipeline: bool) -> float:
    """The confidence of a rule with this support."""
    return of_runs(support.runs) if pipeline else of_programs(support.scripts, support.steps)


def severity(certainty: float, *, habit: bool = False) -> str:
    """error or notice. A change of an optional practice (a regular call that is no longer made) may be intended, so it
    is a notice."""
    return ERROR if certainty >= ERROR_CONFIDENCE and not habit else NOTICE
