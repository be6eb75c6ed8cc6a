"""The diagnosis that batches repeat in a way that no good run showed."""

from __future__ import annotations

from traincheck.diagnoses.diagnosis import Diagnosis, Match
from traincheck.vocab.properties import BATCH_IS_ONLY

DIAGNOSIS = Diagnosis(
    slug="batches-repeat",
    title="The model sees the same batches again",
    problem="The batch of this step came before, which it never did in good runs. The data is no longer shuffled, no "
    "longer changed at random, or the loop trains on one batch again and again.",
    advice=(
        "Check `shuffle=True` or the sampler of the data loader, and `set_epoch` of a distributed sampler.",
        "Check that the loop fetches a new batch in each step, and that augmentation draws new random numbers.",
    ),
    explains=(Match(verb=BATCH_IS_ONLY, setting=True),),
    priority=81,
    priority_reason="It may be intended, and a more specific finding says what is wrong with the data.",
    example="""\
images, labels = next(iter(loader))  # a new iterator in each step: always the first batch
""",
)
