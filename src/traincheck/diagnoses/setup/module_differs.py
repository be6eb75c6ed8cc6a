"""The diagnosis that a module has another class or other attributes than in good runs."""

from __future__ import annotations

from traincheck.diagnoses.diagnosis import Diagnosis, Match
from traincheck.vocab.properties import MODULE_IS_ONLY

DIAGNOSIS = Diagnosis(
    slug="module-differs",
    title="A module is set up differently than in good runs",
    problem="A module has another class or another attribute than in all good runs, or it is gone. If you changed the "
    "model on purpose, accept a run of the new version.",
    advice=(
        "Read the first line of evidence: it shows the module as it is here and as it was in the good runs.",
        "Check the arguments that the constructor of this module gets.",
    ),
    explains=(Match(verb=MODULE_IS_ONLY, setting=True),),
    priority=80,
    priority_reason="A change of the model is often intended, but a changed attribute explains other operations.",
    example="""\
self.drop = nn.Dropout(0.9)  # the good runs dropped a tenth
""",
)
