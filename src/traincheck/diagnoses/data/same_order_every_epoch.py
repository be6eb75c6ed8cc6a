"""The diagnosis that the data comes in the same order in every epoch."""

from __future__ import annotations

from traincheck.diagnoses.diagnosis import Diagnosis, Match
from traincheck.vocab.properties import DIFFERS_BETWEEN_PASSES

DIAGNOSIS = Diagnosis(
    slug="same-order-every-epoch",
    title="The data comes in the same order in every epoch",
    problem="The batches of this epoch are those of the epoch before, in the same order.",
    advice=("Check that shuffle is on, and that a distributed sampler gets set_epoch() in each epoch.",),
    explains=(Match(verb=DIFFERS_BETWEEN_PASSES),),
    priority=9,
    priority_reason="It changes the data; defects in the training loop matter more.",
    example="""\
loader = DataLoader(dataset, batch_size=32)  # shuffle=True is missing
""",
    former_titles=("The data comes in the same order in every pass",),
)
