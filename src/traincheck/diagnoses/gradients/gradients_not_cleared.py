"""The diagnosis that gradients are not cleared between steps."""

from __future__ import annotations

from traincheck.diagnoses.diagnosis import Diagnosis, Match
from traincheck.relations.periodic.parameter_updates import GRAD
from traincheck.vocab.properties import IS_CLEARED

DIAGNOSIS = Diagnosis(
    slug="gradients-not-cleared",
    title="Gradients are not cleared between steps",
    problem="Gradients of the last step were still there in the next backward pass, so they add up from step to"
    " step. zero_grad() is missing or does not reach these parameters.",
    advice=(
        "Call optimizer.zero_grad() once in every step, before the backward pass or after the step.",
        "If you accumulate gradients on purpose, clear them after each optimizer step.",
    ),
    explains=(Match(object=GRAD, detail=IS_CLEARED),),
    priority=3,
    priority_reason="An update that reaches no parameter also leaves gradients behind.",
    example="""\
for batch in loader:
    model(batch).mean().backward()  # optimizer.zero_grad() is missing
    optimizer.step()
""",
)
