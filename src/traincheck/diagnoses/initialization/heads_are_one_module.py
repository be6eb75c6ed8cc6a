"""The diagnosis that two heads of a model are one module."""

from __future__ import annotations

from traincheck.diagnoses.diagnosis import Diagnosis, Match
from traincheck.vocab.builtin_rules import TWO_HEADS

DIAGNOSIS = Diagnosis(
    slug="heads-are-one-module",
    title="Two heads or critics are one module",
    problem="A program has two heads with a loss each, or takes the smaller result of two critics. Both names hold "
    "the same module, or a shallow copy of it. So both predict the same numbers: two tasks share one prediction, and "
    "the minimum of two critics is one of them.",
    advice=(
        "Build a module for each name; for equal starts, use copy.deepcopy(module).",
        "For a list: write [make() for _ in range(n)] instead of [module] * n.",
        "If one head is intended: call it once, and use its result in both losses.",
    ),
    explains=(Match(verb=TWO_HEADS.verb),),
    priority=5,
    priority_reason="It is in the model from the start, and errors of the loop matter more.",
    example="""\
self.q1 = nn.Linear(64, 1)
self.q2 = self.q1  # should be another nn.Linear(64, 1)
...
loss = F.mse_loss(self.q1(h), target) + F.mse_loss(self.q2(h), target)
""",
)
