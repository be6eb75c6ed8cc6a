"""The diagnosis that two calls happen in the wrong order."""

from __future__ import annotations

from traincheck.diagnoses.diagnosis import Diagnosis, Match
from traincheck.vocab.properties import THEN

DIAGNOSIS = Diagnosis(
    slug="calls-in-wrong-order",
    title="Two calls happen in the wrong order",
    problem="Both calls change the same state, and good runs make them in the other order.",
    advice=("Swap the two calls.",),
    explains=(Match(detail=f"{THEN}*"),),
    priority=6,
    priority_reason="A missing call or gradient also changes the order, so those come first.",
    example="""\
torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
scaler.unscale_(optimizer)  # clipping belongs after it
""",
)
