"""The diagnosis that all gradients of the model are zero."""

from __future__ import annotations

from traincheck.diagnoses.diagnosis import Diagnosis, Match
from traincheck.vocab.builtin_rules import NOT_ALL_ZERO

DIAGNOSIS = Diagnosis(
    slug="all-gradients-zero",
    title="All gradients of the model are zero",
    problem="Every gradient was exactly zero in each of the first steps, so the loss does not depend on the "
    "parameters. Typical reasons are a softmax or cross entropy over one class, a loss that is "
    "multiplied by zero or fully masked, a detached term, and dead units.",
    advice=(
        "Print the loss: is it exactly zero, or the same in every step?",
        "Check the number of classes in the last layer, and the dimension that softmax normalizes.",
        "In reinforcement learning, check that some step had a nonzero reward or advantage.",
    ),
    explains=(Match(verb=NOT_ALL_ZERO.verb, detail=NOT_ALL_ZERO.detail),),
    priority=1,
    priority_reason="Parameters cannot change without a gradient.",
    example="""\
logits = model(batch)[:, :1]
loss = torch.nn.functional.cross_entropy(logits, labels * 0)  # one class: the loss is always zero
""",
)
