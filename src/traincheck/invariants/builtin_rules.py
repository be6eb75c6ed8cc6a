"""Built-in rules about training. They follow from what training is, so no good run has to show them.

TrainCheck deploys them with any other rules, keeps them in the book of the run as it does others, and reports them only
if they are violated. (Those about steps that are executed again are in relations/consistent/builtin_rules.py.)
"""

from __future__ import annotations

import functools

from traincheck.vocab.builtin_rules import (
    CASTS,
    COPIES,
    DEVICES,
    EFFECT,
    EQUAL_LAYERS,
    EVALUATED,
    EVALUATES_TRAINED,
    FIRST_USE,
    FLAGS,
    FLOW,
    FLOW_OF_GRADIENTS,
    GRAD,
    IDLE,
    IDLE_AUTOCAST,
    IN_MODE_AROUND,
    IN_TRAINING_MODE,
    IS_STEPPED,
    KEEPS_STATE,
    KEPT_IS_LOADED,
    KEPT_STATE,
    KEPT_WEIGHTS,
    LAYERS,
    LEARNING_OF_LAYERS,
    LOGITS,
    MEMORY,
    MODE,
    NOT_ALL_ZERO,
    NOT_ZERO_FOR_LONG,
    REPLACED_OPTIMIZER,
    SAME_COPIES,
    SCORES,
    SHUFFLED,
    SHUFFLES,
    STALE_COPY,
    START,
    STARTS_DIFFER,
    STRETCH,
    SUCCESSION,
    UNREAD,
    UNREAD_BY_OPTIMIZER,
    UNREAD_IS_READ,
    UNSTEPPED_SCHEDULER,
    UNUSED,
    USE,
    USED,
    WITH_LOGITS,
    WRITTEN,
    sentence_of,
)
from traincheck.vocab.invariant import ERROR, NOTICE, Invariant, builtin_rule
from traincheck.vocab.occasion import Property, Subject

RELATION = "Periodic"
"""The relation that judges them."""


def of_training() -> tuple[Invariant, ...]:
    """The rules about gradients and their way to an update, the mode of models, unwritten memory, and copies."""
    flow = Subject(GRAD, FLOW)
    zeros, idle, unused = Subject(GRAD, STRETCH), Subject(IDLE, USE), Subject(UNUSED, USE)
    return (
        _rule(zeros, NOT_ALL_ZERO, ERROR),
        _rule(zeros, NOT_ZERO_FOR_LONG, NOTICE),
        _rule(idle, USED, ERROR),
        _rule(unused, USED, NOTICE),
        *(_rule(flow, prop, ERROR) for prop in FLOW_OF_GRADIENTS),
        *(_rule(Subject(GRAD, LAYERS), prop, ERROR) for prop in LEARNING_OF_LAYERS),
        *(_rule(Subject(prop.object, MODE), prop, ERROR) for prop in (IN_TRAINING_MODE, IN_MODE_AROUND)),
        _rule(Subject(SHUFFLES.object, SHUFFLED), SHUFFLES, ERROR),
        *(_rule(Subject(quantity, FLAGS), UNREAD_IS_READ, ERROR) for quantity in (UNREAD, UNREAD_BY_OPTIMIZER)),
        _rule(Subject(WITH_LOGITS, LOGITS), SCORES, ERROR),
        _rule(Subject(KEPT_WEIGHTS, KEPT_STATE), KEPT_IS_LOADED, ERROR),
        _rule(Subject(MEMORY, FIRST_USE), WRITTEN, ERROR),
        _rule(Subject(EQUAL_LAYERS, START), STARTS_DIFFER, ERROR),
        _rule(Subject(IDLE_AUTOCAST, EFFECT), CASTS, ERROR),
        _rule(Subject(UNSTEPPED_SCHEDULER, EFFECT), IS_STEPPED, ERROR),
        _rule(Subject(STALE_COPY, EVALUATED), EVALUATES_TRAINED, ERROR),
        _rule(Subject(REPLACED_OPTIMIZER, SUCCESSION), KEEPS_STATE, ERROR),
        _rule(Subject(COPIES, DEVICES), SAME_COPIES, ERROR),
    )


def is_always_deployed(rule: Invariant) -> bool:
    """Whether a rule is deployed without a request. Such a rule is reported only if it is violated."""
    return rule.id in _ids() and not rule.support.runs


@functools.cache
def _ids() -> frozenset[str]:
    return frozenset(rule.id for rule in of_training())


def _rule(subject: Subject, prop: Property, severity: str) -> Invariant:
    return builtin_rule(RELATION, subject, prop, severity, sentence_of(subject, prop))
