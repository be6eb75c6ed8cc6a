"""The diagnosis that an evaluation changes state that training goes on with."""

from __future__ import annotations

from traincheck.diagnoses.diagnosis import Diagnosis, Match
from traincheck.vocab.properties import EVALUATION_CHANGES_ONLY

DIAGNOSIS = Diagnosis(
    slug="evaluation-changes-training-state",
    title="An evaluation changes what training goes on with",
    problem="Between its forwards, an evaluation changed parameters, gradients, buffers, the state of an optimizer or "
    "random numbers that the evaluations of all good runs leave as they are.",
    advice=(
        "Look for a module that is still in training mode in the evaluation, and for code of the evaluation that "
        "writes to the model.",
        "If only random numbers are drawn, give the evaluation a generator of its own, or restore the state of the "
        "global one afterwards.",
    ),
    explains=(Match(verb=EVALUATION_CHANGES_ONLY, setting=True),),
    priority=84,
    priority_reason="A more specific finding says which call made the change.",
    example="""\
model.eval()
model.norm.train()  # the evaluation updates the running mean
""",
)
