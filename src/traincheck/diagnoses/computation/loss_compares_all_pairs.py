"""The diagnosis that a loss compares each prediction with each target."""

from __future__ import annotations

from traincheck.diagnoses.diagnosis import Diagnosis, Match
from traincheck.vocab.builtin_rules import SAME_SHAPE

DIAGNOSIS = Diagnosis(
    slug="loss-compares-all-pairs",
    title="The loss compares each prediction with each target",
    problem="The input and the target of a loss have different numbers of dimensions, and broadcasting makes both "
    "larger. Predictions of the shape [9, 1] and targets of the shape [9] become [9, 9]. The model learns the mean of "
    "all targets.",
    advice=(
        "Give both the same shape: prediction.squeeze(1), or target.unsqueeze(1).",
        "torch warns of it once; look for that warning in the output.",
    ),
    explains=(Match(verb=SAME_SHAPE.verb, object=SAME_SHAPE.object, detail=SAME_SHAPE.detail),),
    priority=2,
    priority_reason="The model trains for another task, so other differences follow from it.",
    example="""\
loss = F.mse_loss(model(x), y)  # [9, 1] and [9]
""",
)
