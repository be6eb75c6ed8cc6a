"""The diagnosis that a batch was turned into one sample."""

from __future__ import annotations

from traincheck.diagnoses.diagnosis import Diagnosis, Match
from traincheck.relations.api_output.call_kinds import SEVERAL_ROWS

DIAGNOSIS = Diagnosis(
    slug="batch-became-one-sample",
    title="A batch was turned into one sample",
    problem="The largest tensor of the batch has a single row, while other tensors have a row for each sample. "
    "Code on the way treats the whole batch as one sample (one list nesting too many or too few).",
    advice=("Check the collate function and the code that it calls: how does it stack the samples?",),
    explains=(Match(verb=SEVERAL_ROWS.verb, object=SEVERAL_ROWS.object),),
    priority=10,
    priority_reason="It changes the data; defects in the training loop matter more.",
    example="""\
return processor([images])  # one sample, made of all images
""",
    former_titles=("A batch was made into one sample",),
)
