"""The diagnosis that passes over the data are left early, which no good run did."""

from __future__ import annotations

from traincheck.diagnoses.diagnosis import Diagnosis, Match
from traincheck.vocab.properties import PASS_ENDS_ONLY

DIAGNOSIS = Diagnosis(
    slug="passes-left-early",
    title="The loop leaves the data loader early",
    problem="A pass over a data loader ended before the data did, or went on where good runs ended it. A loop that "
    "begins a new pass in each step never sees the rest of the data.",
    advice=(
        "Check that the loop takes all batches of one iterator, and does not call iter() in each step.",
        "Check the conditions of `break`, and the limit on batches per epoch.",
    ),
    explains=(Match(verb=PASS_ENDS_ONLY, setting=True),),
    priority=81,
    priority_reason="It may be intended, and a more specific finding says what is wrong with the data.",
    example="""\
for _ in range(len(loader)):
    images, labels = next(iter(loader))  # a new pass in each step
""",
)
