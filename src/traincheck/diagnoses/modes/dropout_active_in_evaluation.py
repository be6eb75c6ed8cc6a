"""The diagnosis that dropout is active in evaluation mode."""

from __future__ import annotations

from traincheck.diagnoses.diagnosis import Diagnosis, Match
from traincheck.relations.api_arg.mode_arguments import OFF
from traincheck.vocab.builtin_rules import IN_MODE_AROUND
from traincheck.vocab.properties import ARGUMENT_AGREES

DIAGNOSIS = Diagnosis(
    slug="dropout-active-in-evaluation",
    title="Dropout is active in evaluation mode",
    problem="A module in evaluation mode passes a nonzero dropout rate to this call, or its forward makes a layer, "
    "which is in training mode then. Evaluation results are random, and worse than they should be.",
    advice=(
        "Pass a rate of 0.0 unless self.training is True.",
        "Make layers in __init__, so that eval() reaches them.",
    ),
    explains=(
        Match(verb=ARGUMENT_AGREES, detail=OFF),
        Match(verb=IN_MODE_AROUND.verb, object=IN_MODE_AROUND.object, detail=IN_MODE_AROUND.detail),
    ),
    priority=10,
    priority_reason="A model in the wrong mode explains it.",
    example="""\
out = F.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout)  # in evaluation, too
""",
    former_titles=("A function is told another mode than its module is in",),
)
