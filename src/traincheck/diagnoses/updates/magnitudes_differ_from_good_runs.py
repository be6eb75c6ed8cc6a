"""The diagnosis that updates, gradients or outputs have another size than in good runs."""

from __future__ import annotations

from traincheck.diagnoses.diagnosis import Diagnosis, Match
from traincheck.vocab.properties import LIES_IN_BAND, STAYS_NEAR_BAND

DIAGNOSIS = Diagnosis(
    slug="magnitudes-differ-from-good-runs",
    title="Updates, gradients or outputs are much larger or smaller than in good runs",
    problem="Relative to the weights, an update is much larger or smaller than in all good runs at about this step. Or "
    "a module has another share of the gradient, more or fewer zeros in it, or an output of another size.",
    advice=(
        "Check what scales the loss and the weights: the initialization, the reduction of the loss, the learning rate.",
        "If the learning rate or the batch size was changed on purpose, accept a run of the new version.",
    ),
    explains=(Match(verb=(LIES_IN_BAND, STAYS_NEAR_BAND), setting=True),),
    priority=96,
    priority_reason="Most errors change some number, and a more specific finding says what is wrong.",
    example="""\
loss = criterion(model(x), y) * 1e4  # updates of SGD are 10,000 times as large
""",
)
