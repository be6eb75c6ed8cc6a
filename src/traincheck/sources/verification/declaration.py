"""What the sources of experiments serve."""

from __future__ import annotations

from traincheck.vocab.experiments import ALGORITHM, DERIVATIVE, KIND, ROUND_TRIP, Experiment
from traincheck.vocab.source_declaration import SourceDeclaration


def _declare(source: str, experiment: Experiment, observes: str) -> SourceDeclaration:
    return SourceDeclaration(
        name=source,
        observes=f"{observes}, with --verify-every",
        absence=f"TrainCheck does not verify that {experiment.sentence}.",
        readings=(f"{KIND}.{experiment.name}",),
        cost="step",
        switchable=False,
    )


UPDATES = _declare("updates", ALGORITHM, "updates that are compared with the documented algorithm of the optimizer")
DERIVATIVES = _declare(
    "derivatives", DERIVATIVE, "gradients that are compared with the derivative of the recorded computation"
)
ROUND_TRIPS = _declare("round_trip", ROUND_TRIP, "checkpoints that are loaded and compared with the live model")
