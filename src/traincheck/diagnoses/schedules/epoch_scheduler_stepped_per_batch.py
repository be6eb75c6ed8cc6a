"""The diagnosis that a scheduler that counts epochs is stepped after each batch."""

from __future__ import annotations

from traincheck.diagnoses.diagnosis import Diagnosis, Match
from traincheck.vocab.properties import COVERS_A_PASS

DIAGNOSIS = Diagnosis(
    slug="epoch-scheduler-stepped-per-batch",
    title="A scheduler that counts epochs is stepped after each batch",
    problem="The scheduler was built for fewer steps than one epoch has batches. The learning rate reaches its "
    "floor (or rises again) within the first epoch, instead of falling over the whole training.",
    advice=(
        "Call scheduler.step() once per epoch, after the loop over batches. Or build the scheduler for "
        "epochs times batches.",
    ),
    explains=(Match(verb=COVERS_A_PASS),),
    priority=7,
    priority_reason="It changes how well a model learns, not whether it learns.",
    example="""\
scheduler = CosineAnnealingLR(optimizer, T_max=epochs)
for batch in loader:
    train_step(batch)
    scheduler.step()  # once per batch
""",
)
