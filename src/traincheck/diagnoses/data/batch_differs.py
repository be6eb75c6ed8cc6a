"""The diagnosis that a model is called with another kind of input than in good runs."""

from __future__ import annotations

from traincheck.diagnoses.diagnosis import Diagnosis, Match
from traincheck.vocab.properties import BATCH_HAS_ONLY_FORMS

DIAGNOSIS = Diagnosis(
    slug="batch-differs",
    title="A model gets other inputs than in good runs",
    problem="An input of a model has another dtype, another number of dimensions or another range of values than in "
    "all good runs, or it is gone. If you changed the data on purpose, accept a run of the new version.",
    advice=(
        "Read the first line of evidence: it shows the input as it is here and as it was in the good runs.",
        "Check how the batch is prepared: scaling, normalization, augmentation and padding.",
    ),
    explains=(Match(verb=BATCH_HAS_ONLY_FORMS, setting=True),),
    priority=81,
    priority_reason="A change of the data is often intended, but it explains all later values.",
    example="""\
x = batch["image"].float()  # the good runs divided by 255
""",
)
