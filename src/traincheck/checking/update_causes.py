"""Causes that keep parameters from a value, an update or a gradient that says something."""

from __future__ import annotations

from traincheck.checking.cause import Cause
from traincheck.vocab.builtin_rules import NOT_ALL_ZERO, NOT_ZERO_FOR_LONG, USED, WRITTEN

UPDATE_CAUSES: tuple[Cause, ...] = (
    Cause(
        1,
        "Parameters are used that nothing has initialised",
        "to_empty() allocated the memory of these parameters, and nothing wrote to it before the model was called. "
        "They hold whatever was in that memory, so the first results are arbitrary numbers or NaN.",
        (
            "Initialise every module after to_empty(): does the model's reset_parameters() reach its submodules?",
            "If a checkpoint should have filled them, compare its names with those of the model.",
        ),
        lambda violation: violation.invariant.property == WRITTEN,
    ),
    Cause(
        1,
        "Gradients are computed but no parameter is ever updated",
        "The loop runs backwards on a model in training mode, but nothing uses the gradients: optimizer.step() is "
        "missing or is never reached, so the model does not learn.",
        (
            "Call optimizer.step() after the backward (with a gradient scaler: scaler.step(optimizer)).",
            "With gradient accumulation: is the number of batches smaller than the number of accumulation steps?",
        ),
        lambda violation: violation.invariant.property == USED,
    ),
    Cause(
        1,
        "All gradients of the model are zero",
        "Every gradient was exactly zero in each of the first steps: the loss does not depend on the parameters. "
        "Typical reasons are a softmax or cross entropy over a single class, a loss that is multiplied by zero or "
        "masked completely, a detached term, and saturated or dead units.",
        (
            "Print the loss: is it exactly zero, or the same in every step?",
            "Check the number of classes in the last layer, and the dimension that softmax normalises.",
            "In reinforcement learning: did any step have a reward or an advantage other than zero?",
        ),
        lambda violation: violation.invariant.property == NOT_ALL_ZERO,
    ),
    Cause(
        6,
        "Some parameters only ever get gradients of zero",
        "A backward reaches these parameters, but their gradients were exactly zero in every step so far, while others "
        "are not. They do not learn: their units are dead or saturated, their output is multiplied by zero, or what "
        "they compute is masked out.",
        (
            "Look at what these parameters compute: is it always zero, or always masked?",
            "If that is meant (an unused branch, an expert without tokens), nothing has to be done.",
        ),
        lambda violation: violation.invariant.property == NOT_ZERO_FOR_LONG,
    ),
)
