"""The diagnosis that gradients of a scaled loss are used before they are unscaled."""

from __future__ import annotations

from traincheck.diagnoses.diagnosis import Diagnosis, Match
from traincheck.vocab.builtin_rules import AFTER_UNSCALING

DIAGNOSIS = Diagnosis(
    slug="gradients-still-scaled",
    title="Gradients of a scaled loss are used before they are unscaled",
    problem="A gradient scaler multiplied the loss, so the gradients are larger by the same factor. They were clipped, "
    "or an optimizer used them, before the scaler divided them by it.",
    advice=(
        "Step with scaler.step(optimizer) and scaler.update() instead of optimizer.step().",
        "Call scaler.unscale_(optimizer) before you clip.",
    ),
    explains=(Match(verb=AFTER_UNSCALING.verb, object=AFTER_UNSCALING.object, detail=AFTER_UNSCALING.detail),),
    priority=2,
    priority_reason="Updates that are too large explain what follows.",
    example="""\
scaler.scale(loss).backward()
torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # scaler.unscale_(optimizer) is missing before it
scaler.step(optimizer)
""",
)
