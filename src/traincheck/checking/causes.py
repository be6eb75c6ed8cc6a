"""Causes: the likely cause of a violation, what was expected, and what was observed instead.

A rule that none of the known causes fits is told in its own words.
"""

from __future__ import annotations

from traincheck.checking.cause import Cause
from traincheck.checking.known_causes import CAUSES
from traincheck.relations.base import PAST, short
from traincheck.vocab.finding import Violation
from traincheck.vocab.invariant import Invariant


def cause_of(violation: Violation) -> Cause:
    """The likely cause of a violation; one made from the rule's own words where no entry fits."""
    for cause in CAUSES:
        if cause.fits(violation):
            return cause
    rule = violation.invariant
    return Cause(
        100,
        f"{short(rule.subject.api)} does not behave as in good runs",
        f"In good runs, {rule.sentence}; here it does not.",
        (f"Look at what happens around this call of {short(rule.subject.api)}, and what changed since the good runs.",),
        lambda _: True,
    )


def expected(rule: Invariant) -> str:
    """What should have happened."""
    condition = f" (when {rule.precondition})" if rule.precondition.clauses else ""
    if not rule.support.runs:
        return f"{rule.sentence}{condition}"
    return f"{rule.sentence}{condition}; so it was in {rule.support.runs} good run(s), {rule.support.steps} steps"


def observed(violation: Violation) -> str:
    """What happened instead, and how the parameters around it stood."""
    return "; ".join((violation.note or _instead(violation), *violation.evidence))


def _instead(violation: Violation) -> str:
    rule, prop = violation.invariant, violation.invariant.property
    who = f"{short(rule.subject.api)}" + (f" ({violation.receiver})" if violation.receiver else "")
    when = f"since the last {who}" if rule.subject.grain == "cycle" else f"in {who}"
    if prop.detail in PAST:
        what = prop.object.replace(".", " ").replace("_", " ")
        if rule.subject.grain in ("call", "cycle"):
            return f"{when}, no {what} {PAST[prop.detail]}"
        opposite = {"changes": "did not change", "does not change": "changed", "is cleared": "was not cleared"}
        if rule.subject.grain == "step":
            when = f"by the end of the step of {violation.receiver}"
        return f"{when}, the {what} {opposite.get(prop.detail, 'did not')}"
    if prop.detail.startswith("then "):
        return f"{when}, {short(prop.detail.removeprefix('then '))} came before {short(prop.object)}"
    if prop.verb in ("contains call", "preceded by"):
        with_argument = f" with {prop.detail}" if prop.detail else ""
        return f"{when}, {short(prop.object)} was not called{with_argument}"
    return f"not so {when}" if rule.subject.api.startswith("torch.") or violation.receiver else "not so here"
