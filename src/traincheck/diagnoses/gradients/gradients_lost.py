"""The diagnosis that gradients are cleared before an update uses them."""

from __future__ import annotations

from traincheck.diagnoses.diagnosis import Diagnosis, Match
from traincheck.vocab.builtin_rules import USED_BEFORE_CLEARED

DIAGNOSIS = Diagnosis(
    slug="gradients-lost",
    title="Gradients are cleared before an update uses them",
    problem="A backward pass computed these gradients, and they were cleared or replaced before the optimizer that "
    "holds the parameters stepped. The data of this backward pass does not count.",
    advice=(
        "With gradient accumulation, call zero_grad() after step() only, not in front of each backward pass.",
        "Check that step() is reached as often as zero_grad(), and for each optimizer.",
    ),
    explains=(
        Match(verb=USED_BEFORE_CLEARED.verb, object=USED_BEFORE_CLEARED.object, detail=USED_BEFORE_CLEARED.detail),
    ),
    priority=2,
    priority_reason="Updates with a part of the gradients explain smaller differences.",
    example="""\
for i, batch in enumerate(loader):
    optimizer.zero_grad()  # clears the other micro-batches
    loss(model, batch).backward()
    if (i + 1) % 4 == 0:
        optimizer.step()
""",
)
