"""The diagnosis that a computation ignores autocast."""

from __future__ import annotations

from traincheck.diagnoses.diagnosis import Diagnosis, Match
from traincheck.relations.api_output.call_kinds import IN_LOW_PRECISION
from traincheck.vocab.builtin_rules import CASTS
from traincheck.vocab.properties import RETURNS_DTYPE

DIAGNOSIS = Diagnosis(
    slug="autocast-not-applied",
    title="A computation ignores autocast",
    problem="Inside an autocast region, a call returned another dtype than autocast asks for, although its "
    "inputs had to be cast. Or the region holds only the loss, and nothing in it is cast.",
    advice=(
        "Call the model inside the region, too.",
        "Look for a nested region that disables autocast, or a custom kernel that autocast does not know.",
    ),
    explains=(
        Match(verb=RETURNS_DTYPE),
        Match(verb=CASTS.verb, object=CASTS.object),
        Match(verb=IN_LOW_PRECISION.verb, object=IN_LOW_PRECISION.object),
    ),
    priority=11,
    priority_reason="It changes speed and precision, not whether the model learns.",
    example="""\
with torch.autocast("cuda", torch.bfloat16):
    y = my_linear(x, weight)  # a custom kernel: computes in float32
""",
    former_titles=("Autocast does not reach a computation",),
)
