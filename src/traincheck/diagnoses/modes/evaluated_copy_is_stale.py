"""The diagnosis that an evaluation calls a copy of the model from before the training."""

from __future__ import annotations

from traincheck.diagnoses.diagnosis import Diagnosis, Match
from traincheck.vocab.builtin_rules import EVALUATES_TRAINED

DIAGNOSIS = Diagnosis(
    slug="evaluated-copy-is-stale",
    title="An evaluation calls an old copy of the model",
    problem="This evaluation calls only a copy that was made with copy.deepcopy. Training has changed the original "
    "since, and nothing has changed the copy. So the evaluation shows the weights of that time.",
    advice=(
        "Evaluate the model that is trained.",
        "If you evaluate an average or a target, check that the loop updates it.",
    ),
    explains=(Match(verb=EVALUATES_TRAINED.verb),),
    priority=5,
    priority_reason="It affects what you see of the training, and not the training itself.",
    example="""\
best = copy.deepcopy(model)
for epoch in range(10):
    train(model)
    evaluate(best)  # should be model
""",
)
