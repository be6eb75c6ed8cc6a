"""What the sources of experiments serve."""

from __future__ import annotations

from traincheck.vocab.experiments import (
    ACCUMULATION,
    KIND,
    LATER_TOKENS,
    PADDING,
    PADDING_LOSS,
    RECOMPUTATION,
    SAMPLES,
    Experiment,
)
from traincheck.vocab.source_declaration import SourceDeclaration


def _declare(source: str, observes: str, *experiments: Experiment) -> SourceDeclaration:
    sentences = ", and ".join(experiment.sentence for experiment in experiments)
    return SourceDeclaration(
        name=source,
        observes=f"{observes}, with --verify-every",
        absence=f"TrainCheck does not verify that {sentences}.",
        readings=tuple(f"{KIND}.{experiment.name}" for experiment in experiments),
        cost="step",
        switchable=False,
    )


INPUTS = _declare(
    "inputs",
    "calls of models that are executed again with changed inputs",
    SAMPLES,
    LATER_TOKENS,
    PADDING,
    PADDING_LOSS,
)
RECOMPUTATIONS = _declare("recomputations", "results that activation checkpointing computes again", RECOMPUTATION)
ACCUMULATIONS = _declare("accumulations", "the losses whose gradients are accumulated", ACCUMULATION)
