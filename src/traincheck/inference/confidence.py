"""Confidence: the probability that a further good run obeys a rule, and what follows for its severity.

Note [Confidence]
*General* rules. A rule was obeyed by s distinct programs, in t distinct training steps, without exception. With a
uniform prior over the unknown share of programs that obey it, Laplace's rule of succession gives (s + 1) / (s + 2) for
the next program, and likewise (t + 1) / (t + 2) for a further step of one that does. Both must come true, so confidence
is their product. Occasions are not counted: a thousand parameters in one step are one observation of what the program
does.

*Pipeline* rules. The next run is of the same program, so the whole run is the observation, however many steps it had:
what happens once in a run (an initialisation, a checkpoint) is seen as well by three runs as what happens in each step.
But runs of one pipeline share more than programs do (data, machine, configuration), so the prior is not uniform but
counts one run that disobeyed: r runs give r / (r + 1).

*Named* books. Who names a book says that the programs it was learned from are an example for the one that is checked:
what is in question is no longer whether the next program is like them. So a rule that speaks of torch alone counts as
if `NAMED_PROGRAMS` programs had borne it out, which is what an error takes of a book that nobody named, and its steps
count as ever: from 14 on it is an error.

A finding of severity *error* fails a user's run, so it takes `ERROR_CONFIDENCE` = 3/4. That is three programs at 14
steps between them, (4/5) (15/16) = 3/4 exactly, or three runs of the user's own pipeline; two of either never reach it,
which is what "supported by several distinct runs" means.
"""

from __future__ import annotations

from traincheck.vocab.invariant import ERROR, NOTICE, Support

ERROR_CONFIDENCE = 0.75
NAMED_PROGRAMS = 3
LEAST_STEPS = 2
"""Rules seen in a single step are coincidences: nothing in them has ever been repeated."""


def of_programs(programs: int, steps: int) -> float:
    """The confidence of a general rule, see Note [Confidence]."""
    return (programs + 1) / (programs + 2) * (steps + 1) / (steps + 2)


def of_runs(runs: int) -> float:
    """The confidence of a rule of one pipeline, see Note [Confidence]."""
    return runs / (runs + 1)


def of_named(support: Support) -> float:
    """The confidence of a rule that speaks of torch alone in a book that the user named, see Note [Confidence]."""
    return round(of_programs(max(support.scripts, NAMED_PROGRAMS), support.steps), 4)


def of_support(support: Support, *, pipeline: bool) -> float:
    """The confidence of a rule with this support."""
    return of_runs(support.runs) if pipeline else of_programs(support.scripts, support.steps)


def severity(certainty: float, *, habit: bool = False) -> str:
    """error or notice. A change of habit (a call that was regular is made no more) may be meant, so it is a notice."""
    return ERROR if certainty >= ERROR_CONFIDENCE and not habit else NOTICE
