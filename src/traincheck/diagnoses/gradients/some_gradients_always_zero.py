"""The diagnosis that some parameters only ever get zero gradients."""

from __future__ import annotations

from traincheck.diagnoses.diagnosis import Diagnosis, Match
from traincheck.vocab.builtin_rules import NOT_ZERO_FOR_LONG

DIAGNOSIS = Diagnosis(
    slug="some-gradients-always-zero",
    title="Some parameters only ever get zero gradients",
    problem="The backward pass reaches these parameters, but their gradients were exactly zero in every step so"
    " far. Other gradients are not. These parameters do not learn: their units are dead or saturated, "
    "their output is multiplied by zero, or their result is masked out.",
    advice=(
        "Check what these parameters compute: is it always zero, or always masked?",
        "If it is intended (an unused branch, an expert without tokens), you need not change anything.",
    ),
    explains=(Match(verb=NOT_ZERO_FOR_LONG.verb, detail=NOT_ZERO_FOR_LONG.detail),),
    priority=6,
    priority_reason="Most other defects of updates and gradients explain it.",
    example="""\
hidden = torch.relu(layer(x) - 100.0)  # the units never activate
""",
    former_titles=("Some parameters only ever get gradients of zero",),
)
