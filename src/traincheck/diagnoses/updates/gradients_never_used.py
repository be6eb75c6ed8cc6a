"""The diagnosis that gradients are computed, but no update uses them."""

from __future__ import annotations

from traincheck.diagnoses.diagnosis import Diagnosis, Match
from traincheck.vocab.builtin_rules import USED

DIAGNOSIS = Diagnosis(
    slug="gradients-never-used",
    title="Gradients are computed, but no update uses them",
    problem="The loop runs backward passes on a model in training mode, but nothing uses the gradients. "
    "optimizer.step() is missing or never reached, so the model does not learn. With several optimizers, this may "
    "concern one of them and its parameters.",
    advice=(
        "Call optimizer.step() after the backward pass (with a gradient scaler: scaler.step(optimizer)).",
        "With gradient accumulation, check whether the loop has fewer batches than accumulation steps.",
    ),
    explains=(Match(verb=USED.verb, object=USED.object, detail=USED.detail),),
    priority=1,
    priority_reason="Without an update, no other rule about updates can hold.",
    example="""\
for batch in loader:
    loss = model(batch).mean()
    loss.backward()  # optimizer.step() is missing
""",
    former_titles=(
        "Gradients are computed, but no parameter is ever updated",
        "Gradients are computed but no parameter is ever updated",
    ),
)
