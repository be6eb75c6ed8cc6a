"""The diagnosis that the optimizer steps without a backward pass."""

from __future__ import annotations

from traincheck.diagnoses.diagnosis import Diagnosis, Match
from traincheck.vocab.builtin_rules import USED_ONCE
from traincheck.vocab.properties import LEARNS_FROM

DIAGNOSIS = Diagnosis(
    slug="step-without-backward",
    title="The optimizer steps without a backward pass",
    problem="The optimizer made a step, and no backward pass ran before it that computed its gradients. So the update "
    "does nothing, or it repeats the last one.",
    advice=(
        "Check that every path to this step calls loss.backward(), and that only one step follows it.",
        "Check that the loss comes from this model and is neither detached nor computed under no_grad.",
    ),
    explains=(
        Match(verb=LEARNS_FROM),
        Match(verb=USED_ONCE.verb, object=USED_ONCE.object, detail=USED_ONCE.detail),
    ),
    priority=1,
    priority_reason="Missing gradients and unchanged parameters follow from it.",
    example="""\
loss = model(batch).mean()
optimizer.step()  # loss.backward() is missing
""",
    former_titles=("The optimizer steps without a backward",),
)
