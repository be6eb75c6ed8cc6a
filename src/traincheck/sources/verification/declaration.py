"""What the sources of experiments serve."""

from __future__ import annotations

from traincheck.vocab.source_declaration import SourceDeclaration
from traincheck.vocab.verification import (
    ACCUMULATION,
    ALGORITHM,
    DERIVATIVE,
    KIND,
    LATER_TOKENS,
    MIXED_SAMPLES,
    NEXT_TOKEN,
    PADDED,
    PADDING,
    PADDING_LOSS,
    RECOMPUTATION,
    ROUND_TRIP,
    SAMPLES,
    Experiment,
)


def _declare(source: str, observes: str, *experiments: Experiment) -> SourceDeclaration:
    sentences = ", and that ".join(experiment.sentence for experiment in experiments)
    return SourceDeclaration(
        name=source,
        observes=f"{observes}, with --verify-every",
        absence=f"TrainCheck does not verify that {sentences}.",
        readings=tuple(f"{KIND}.{experiment.name}" for experiment in experiments),
        cost="step",
        switchable=False,
    )


UPDATES = _declare("updates", "updates that are compared with the documented algorithm of the optimizer", ALGORITHM)
DERIVATIVES = _declare(
    "derivatives", "gradients that are compared with the derivative of the recorded computation", DERIVATIVE
)
ROUND_TRIPS = _declare("round_trip", "checkpoints that are loaded and compared with the live model", ROUND_TRIP)
INPUTS = _declare(
    "inputs",
    "calls of models that are executed again with changed inputs",
    SAMPLES,
    MIXED_SAMPLES,
    LATER_TOKENS,
    NEXT_TOKEN,
    PADDED,
    PADDING,
    PADDING_LOSS,
)
RECOMPUTATIONS = _declare("recomputations", "results that activation checkpointing computes again", RECOMPUTATION)
ACCUMULATIONS = _declare("accumulations", "the losses whose gradients are accumulated", ACCUMULATION)
