"""The diagnosis that values which belong together in good runs do not."""

from __future__ import annotations

from traincheck.diagnoses.diagnosis import Diagnosis, Match
from traincheck.vocab.properties import VALUES_ARE

DIAGNOSIS = Diagnosis(
    slug="values-no-longer-related",
    title="Values lost a relation that they have in good runs",
    problem="A function takes or returns a tensor whose values have another form than in all good runs, or do not "
    "relate to another tensor as they do there. In reinforcement learning, for example, advantages sum to zero in each "
    "group, and the ratio of new and old policy is one before the first update.",
    advice=(
        "Look at the function that computed the tensor, and at the order of the rows, the groups and the mask there.",
        "Check that both tensors are of the same samples, and of the policy that you expect.",
    ),
    explains=(Match(verb=VALUES_ARE),),
    priority=80,
    priority_reason="It names the values, but a more specific finding says which call made them.",
    example="""\
advantages = rewards - rewards.mean()  # the good runs took the mean of each group
""",
)
