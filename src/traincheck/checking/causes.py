"""Causes: what a senior colleague would say of a violated rule.

Each entry tells which violations it explains, by what the rule is about (never by a script or a library's name), and
what to look at first. The first entry that fits is the likely cause; a rule that none fits is told in its own words.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from traincheck.relations.base import PAST, short
from traincheck.vocab.finding import Violation
from traincheck.vocab.invariant import Invariant


@dataclass(frozen=True, slots=True)
class Cause:
    """One kind of trouble. `rank` orders causes that appear together: the lower is nearer to the root."""

    rank: int
    title: str
    cause: str
    advice: tuple[str, ...]
    fits: Callable[[Violation], bool]


def _is(rule: Invariant, *, thing: str, detail: str = "", verbs: Sequence[str] = ()) -> bool:
    prop = rule.property
    return prop.object == thing and (not detail or prop.detail == detail) and (not verbs or prop.verb in verbs)


def _step(rule: Invariant) -> bool:
    return rule.subject.api.endswith(".step") and ".optim." in rule.subject.api


def _nothing_updated(violation: Violation) -> bool:
    rule = violation.invariant
    return _is(rule, thing="parameter.data", detail="changes") and rule.subject.grain in ("call", "cycle")


def _some_not_updated(violation: Violation) -> bool:
    rule = violation.invariant
    return _is(rule, thing="parameter.data", detail="changes") and rule.subject.grain == "parameter.data"


def _not_cleared(violation: Violation) -> bool:
    return _is(violation.invariant, thing="parameter.grad", detail="is cleared")


def _not_filled(violation: Violation) -> bool:
    return _is(violation.invariant, thing="parameter.grad", detail="is filled")


def _wrong_mode(violation: Violation) -> bool:
    prop = violation.invariant.property
    return prop.object.endswith(".forward") and prop.detail.startswith("training=")


def _order(violation: Violation) -> bool:
    return violation.invariant.property.detail.startswith("then ")


CAUSES: tuple[Cause, ...] = (
    Cause(
        1,
        "Training runs in evaluation mode",
        "The model was called with gradients on but in evaluation mode: eval() was called and train() never after it. "
        "Dropout is off and batch norms no longer learn their statistics.",
        (
            "Call model.train() at the start of every epoch, or right after the validation.",
            "Look for the last model.eval() before this step.",
        ),
        _wrong_mode,
    ),
    Cause(
        2,
        "The optimizer step changes no parameter",
        "The optimizer ran, but none of the parameters that it holds changed: they got no gradient. "
        "Either they are frozen, or they are not the ones that the model uses (copies, or those from before the model "
        "was wrapped, moved or its layers replaced).",
        (
            "Compare the parameters given to the optimizer with model.parameters(): same objects, requires_grad True?",
            "Build the optimizer after freezing, wrapping and replacing layers.",
        ),
        _nothing_updated,
    ),
    Cause(
        3,
        "Gradients are not cleared between steps",
        "Gradients of the last step were still there when the next backward ran, so they add up from step to step: "
        "zero_grad is missing or does not reach these parameters.",
        (
            "Call optimizer.zero_grad() once in every step, before the backward or after the step.",
            "If gradients are accumulated on purpose, clear them after each optimizer step.",
        ),
        _not_cleared,
    ),
    Cause(
        4,
        "Some parameters with a gradient are never updated",
        "These parameters require a gradient and got one, but the optimizer step left them as they were: no optimizer "
        "holds them, or the one that does passes them over.",
        (
            "Check that every trainable parameter is in one of the optimizer's groups.",
            "If they should be frozen, set requires_grad to False.",
        ),
        _some_not_updated,
    ),
    Cause(
        5,
        "The backward leaves no gradient",
        "A backward ran, but the parameters that the optimizer holds got no gradient from it: the loss does not depend "
        "on them (detached, .item(), no_grad), or they are frozen.",
        ("Check what the loss is computed from, and requires_grad of these parameters.",),
        _not_filled,
    ),
    Cause(
        6,
        "Two calls happen in the wrong order",
        "Both calls change the same state, and their order is the other way round than in good runs.",
        ("Swap the two calls.",),
        _order,
    ),
)


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
    return f"{rule.sentence}{condition}; so it was in {rule.support.runs} good run(s), {rule.support.steps} steps"


def observed(violation: Violation) -> str:
    """What happened instead, and how the parameters around it stood."""
    return "; ".join((_instead(violation), *violation.evidence))


def _instead(violation: Violation) -> str:
    rule, prop = violation.invariant, violation.invariant.property
    who = f"{short(rule.subject.api)}" + (f" ({violation.receiver})" if violation.receiver else "")
    when = f"since the last {who}" if rule.subject.grain == "cycle" else f"in {who}"
    if prop.detail in PAST:
        what = prop.object.replace(".", " ").replace("_", " ")
        if rule.subject.grain in ("call", "cycle"):
            return f"{when}, no {what} {PAST[prop.detail]}"
        opposite = {"changes": "did not change", "does not change": "changed"}
        return f"{when}, the {what} {opposite.get(prop.detail, 'did not')}"
    if prop.detail.startswith("then "):
        return f"{when}, {short(prop.detail.removeprefix('then '))} came before {short(prop.object)}"
    with_argument = f" with {prop.detail}" if prop.detail else ""
    return f"{when}, {short(prop.object)} was not called{with_argument}"
