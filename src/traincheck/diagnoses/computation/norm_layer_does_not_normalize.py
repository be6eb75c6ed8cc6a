"""The diagnosis that a normalization layer does not normalize."""

from __future__ import annotations

from traincheck.diagnoses.diagnosis import Diagnosis, Match
from traincheck.relations.api_output.call_kinds import SCALED

DIAGNOSIS = Diagnosis(
    slug="norm-layer-does-not-normalize",
    title="A normalization layer does not normalize",
    problem="The root mean square of the layer's result is far from that of its weight. The layer divides by "
    "something else than the deviation or root mean square (an L2 norm, a sum), or over another "
    "dimension.",
    advice=(
        "Check the forward method of this layer: what does it divide by, and over which dimension?",
        "For a layer of torch, check eps. It is the second argument: BatchNorm1d(64, 0.8) sets eps, not momentum.",
    ),
    explains=(Match(verb=SCALED.verb, object=SCALED.object),),
    priority=10,
    priority_reason="The model trains; other defects stop it from learning.",
    example="""\
return weight * x / x.norm(dim=-1, keepdim=True)  # the root mean square needs sqrt(width)
""",
    former_titles=("A normalising layer does not normalise",),
)
