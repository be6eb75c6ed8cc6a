"""The diagnosis that a normalization runs over a single element."""

from __future__ import annotations

from traincheck.diagnoses.diagnosis import Diagnosis, Match
from traincheck.vocab.properties import ARGUMENT_SIZE

DIAGNOSIS = Diagnosis(
    slug="softmax-over-one-element",
    title="A normalization runs over a single element",
    problem="The dimension that the function normalizes (softmax, for example) has one element. Its result is "
    "constant, and no gradient flows through it.",
    advice=("Check the shape of the input and the dimension that you pass.",),
    explains=(Match(verb=ARGUMENT_SIZE),),
    priority=10,
    priority_reason="Zero gradients follow from it, and name the parameters better.",
    example="""\
gate = torch.softmax(router(x).topk(1).values, dim=-1)  # one logit: always 1.0
""",
    former_titles=(
        "A normalization runs over a single element",
        "A normalisation runs over a single element",
    ),
)
