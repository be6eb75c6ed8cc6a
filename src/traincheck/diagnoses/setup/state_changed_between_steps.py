"""The diagnosis that a value changed that stays constant in good runs."""

from __future__ import annotations

from traincheck.diagnoses.diagnosis import Diagnosis, Match
from traincheck.vocab.properties import KEEPS, RESTORES, STAYS

DIAGNOSIS = Diagnosis(
    slug="state-changed-between-steps",
    title="A value changed that stays constant in good runs",
    problem="Between two optimizer steps, something changed that good runs never change: whether a parameter is"
    " trainable, its dtype, or a hyperparameter.",
    advice=("Check the code that ran since the last step: saving, wrapping, loading, an evaluation.",),
    explains=(Match(verb=(STAYS, KEEPS, RESTORES)),),
    priority=4,
    priority_reason="A restart, a wrong mode or a wrong optimizer explains it.",
    example="""\
model.save_pretrained(path)  # freezes the adapters on the way
""",
    former_titles=("Something that should stay as it is was changed",),
)
