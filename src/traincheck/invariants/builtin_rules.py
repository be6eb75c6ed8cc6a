"""Built-in rules about training. They follow from what training is, so no good run has to show them.

TrainCheck deploys them with any other rules, keeps them in the book of the run as it does others, and reports them only
if they are violated. (Those about steps that are executed again are in relations/consistent/builtin_rules.py.)
"""

from __future__ import annotations

import functools

from traincheck.vocab.builtin_rules import (
    BY_ONE_NORM,
    CLIPPED_SHARDS,
    ELEMENTWISE,
    EVALUATION,
    FLOW,
    FLOW_OF_GRADIENTS,
    GRAD,
    IN_EVALUATION_MODE,
    IN_MODE_AROUND,
    IN_TRAINING_MODE,
    KEEPS_CLASSES,
    KEEPS_STATE,
    LAYERS,
    LEARNING_OF_LAYERS,
    LOG_PROBABILITIES,
    LOGITS,
    MICRO_BATCHES,
    MODE,
    NOT_ALL_ZERO,
    NOT_ZERO_FOR_LONG,
    OF_CLASSES,
    OF_LOGARITHMS,
    OF_MICRO_BATCHES,
    OF_SCORES,
    ONE_MODEL,
    OVER_CLASSES,
    REPLACED_OPTIMIZER,
    REPLICAS,
    REPORTED,
    REPORTED_ERRORS,
    RESTORES_STATE,
    SAME_SHAPE,
    SCORES,
    SHAPES,
    SHUFFLED,
    SHUFFLES,
    STRETCH,
    SUCCESSION,
    UNRESTORED_HERE,
    UNUSED,
    sentence_of,
)
from traincheck.vocab.invariant import ERROR, NOTICE, Invariant, builtin_rule
from traincheck.vocab.occasion import RANKS, Property, Subject

RELATION, OF_RANKS = "Periodic", "Consistent"
"""The relation that judges them, and the one that compares ranks."""


def of_training(*, compares_ranks: bool = False) -> tuple[Invariant, ...]:
    """The rules about gradients and their way to an update, the mode of models, and errors that sources report.

    The rule about ranks of one model is added where other rules compare ranks, because its relation is large.
    """
    zeros = Subject(GRAD, STRETCH)
    return (
        _rule(zeros, NOT_ALL_ZERO, ERROR),
        _rule(zeros, NOT_ZERO_FOR_LONG, NOTICE),
        *(_rule(Subject(GRAD, FLOW), prop, ERROR) for prop in FLOW_OF_GRADIENTS),
        *(_rule(Subject(GRAD, MICRO_BATCHES), prop, ERROR) for prop in OF_MICRO_BATCHES),
        *(_rule(Subject(GRAD, LAYERS), prop, ERROR) for prop in LEARNING_OF_LAYERS),
        *(_rule(Subject(prop.object, MODE), prop, ERROR) for prop in (IN_TRAINING_MODE, IN_MODE_AROUND)),
        _rule(Subject(IN_EVALUATION_MODE.object, EVALUATION), IN_EVALUATION_MODE, ERROR),
        _rule(Subject(SHUFFLES.object, SHUFFLED), SHUFFLES, ERROR),
        *(_rule(Subject(loss, LOGITS), SCORES, ERROR) for loss in OF_SCORES),
        *(
            _rule(Subject(loss, LOGITS), prop, ERROR)
            for prop in (LOG_PROBABILITIES, OVER_CLASSES)
            for loss in OF_LOGARITHMS
        ),
        *(_rule(Subject(loss, LOGITS), KEEPS_CLASSES, ERROR) for loss in OF_CLASSES),
        *(_rule(Subject(loss, SHAPES), SAME_SHAPE, ERROR) for loss in ELEMENTWISE),
        _rule(Subject(REPLACED_OPTIMIZER, SUCCESSION), KEEPS_STATE, ERROR),
        _rule(Subject(UNRESTORED_HERE, SUCCESSION), RESTORES_STATE, ERROR),
        *(
            _rule(Subject(quantity, REPORTED), prop, NOTICE if quantity == UNUSED else ERROR)
            for quantity, prop in REPORTED_ERRORS.items()
        ),
        _rule(CLIPPED_SHARDS, BY_ONE_NORM, ERROR),
        *([_rule(Subject(REPLICAS, RANKS), ONE_MODEL, ERROR, OF_RANKS)] if compares_ranks else ()),
    )


def is_always_deployed(rule: Invariant) -> bool:
    """Whether a rule is deployed without a request. Such a rule is reported only if it is violated."""
    return rule.id in _ids() and not rule.support.runs


@functools.cache
def _ids() -> frozenset[str]:
    return frozenset(rule.id for rule in of_training(compares_ranks=True))


def _rule(subject: Subject, prop: Property, severity: str, relation: str = RELATION) -> Invariant:
    return builtin_rule(relation, subject, prop, severity, sentence_of(subject, prop))
