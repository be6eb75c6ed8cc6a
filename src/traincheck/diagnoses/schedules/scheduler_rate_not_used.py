"""The diagnosis that the optimizer does not use the learning rate of its scheduler."""

from __future__ import annotations

from traincheck.diagnoses.diagnosis import Diagnosis, Match
from traincheck.relations.consistent.learning_rates import LR, SCHEDULED_LR
from traincheck.vocab.properties import AGREES_WITH, DOES_NOT_HALVE

DIAGNOSIS = Diagnosis(
    slug="scheduler-rate-not-used",
    title="The optimizer does not use the learning rate of its scheduler",
    problem="The learning rate in the optimizer's groups is not the one that the scheduler set, or is far too "
    "high at the start.",
    advice=("Build the scheduler before the first step, and let no other code write the learning rate.",),
    explains=(Match(verb=(AGREES_WITH, DOES_NOT_HALVE), object=(SCHEDULED_LR, LR)),),
    priority=6,
    priority_reason="It changes the size of updates, not whether they happen.",
    example="""\
scheduler.step()
optimizer.param_groups[0]["lr"] = 0.1  # overwrites the scheduled rate
""",
)
