"""The diagnosis that samples come again in a pass or an evaluation, which they never did in good runs."""

from __future__ import annotations

from traincheck.diagnoses.diagnosis import Diagnosis, Match
from traincheck.vocab.properties import SAMPLES_ARE_ONLY

DIAGNOSIS = Diagnosis(
    slug="samples-come-again",
    title="Samples come again that are new in good runs",
    problem="A pass has at least half of its samples twice, or the model was trained on all samples of an evaluation. "
    "No good run showed it. Each worker may read all data, or a split or a cache may return the data of the training.",
    advice=(
        "Check that each worker of an iterable data set reads its own part of the data.",
        "Compare the first samples of the training data and of the evaluation data.",
        "Delete the cache of processed data, and check what its keys depend on.",
    ),
    explains=(Match(verb=SAMPLES_ARE_ONLY, setting=True),),
    priority=80,
    priority_reason="It may be intended, and a more specific finding says what is wrong with the data.",
    example="""\
evaluation = load_dataset("rows", split="train")  # should be "validation"
""",
)
