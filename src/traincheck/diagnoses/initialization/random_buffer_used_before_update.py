"""The diagnosis that a random buffer is used before its first update."""

from __future__ import annotations

from traincheck.diagnoses.diagnosis import Diagnosis, Match
from traincheck.vocab.properties import IS_UPDATED_BEFORE_USE

DIAGNOSIS = Diagnosis(
    slug="random-buffer-used-before-update",
    title="A random buffer is used before its first update",
    problem="Training updates this buffer, but an evaluation before training used its random initial numbers. "
    "An estimate that has not run yet (a power iteration, a running mean) can be off by orders of "
    "magnitude.",
    advice=(
        "Run the first update when you create the buffer (or load it), or evaluate only after the first training step.",
    ),
    explains=(Match(verb=IS_UPDATED_BEFORE_USE),),
    priority=1,
    priority_reason="Results that use the buffer are wrong because of it.",
    example="""\
self.register_buffer("u", torch.randn(n))  # the power iteration runs in training only
""",
    former_titles=("A buffer of random numbers is used before it is updated",),
)
