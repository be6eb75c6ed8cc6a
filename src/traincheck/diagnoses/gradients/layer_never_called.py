"""The diagnosis that a module makes a layer and never calls it."""

from __future__ import annotations

from traincheck.diagnoses.diagnosis import Diagnosis, Match
from traincheck.vocab.builtin_rules import IS_CALLED

DIAGNOSIS = Diagnosis(
    slug="layer-never-called",
    title="A layer is made and never called",
    problem="A module makes a layer with parameters in its constructor, and no method of its class uses it. The layer "
    "gets no gradient, and the model computes without it.",
    advice=(
        "Check forward(): does it call the layer where you meant it to?",
        "If the layer is no longer needed, remove it: wrappers for several ranks fail on unused parameters.",
    ),
    explains=(Match(verb=IS_CALLED.verb, object=IS_CALLED.object, detail=IS_CALLED.detail),),
    priority=4,
    priority_reason="It says which part of the model does not learn.",
    stands_alone=True,
    example="""\
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.layer = nn.LayerNorm(64), nn.Linear(64, 64)

    def forward(self, x):
        return x + self.layer(x)  # should be self.layer(self.norm(x))
""",
)
