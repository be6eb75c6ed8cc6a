"""The diagnosis that the optimizer steps without a backward pass."""

from __future__ import annotations

from traincheck.diagnoses.diagnosis import Diagnosis, Match
from traincheck.vocab.properties import LEARNS_FROM

DIAGNOSIS = Diagnosis(
    slug="step-without-backward",
    title="The optimizer steps without a backward pass",
    problem="The model was called in training and the optimizer made its step. No backward pass ran in between "
    "and nothing else set a gradient, so the update does nothing.",
    advice=(
        "Check that every path to this step calls loss.backward().",
        "Check that the loss comes from this model and is neither detached nor computed under no_grad.",
    ),
    explains=(Match(verb=LEARNS_FROM),),
    priority=1,
    priority_reason="Missing gradients and unchanged parameters follow from it.",
    example="""\
loss = model(batch).mean()
optimizer.step()  # loss.backward() is missing
""",
    former_titles=("The optimizer steps without a backward",),
)
