"""The diagnosis that initialization skips a parameter."""

from __future__ import annotations

from traincheck.diagnoses.diagnosis import Diagnosis, Match
from traincheck.relations.api_output.call_results import CHANGED
from traincheck.vocab.properties import LEAVES_ARGUMENT

DIAGNOSIS = Diagnosis(
    slug="parameter-skipped-at-initialization",
    title="Initialization skips a parameter",
    problem="A function that initializes each of its parameters left this one unchanged. The parameter keeps "
    "the start value (and spread) of its layer, instead of the one that you asked for.",
    advice=("Look for a condition in this function that skips parameters: sharded, wrapped, frozen or tied ones.",),
    explains=(Match(verb=LEAVES_ARGUMENT, detail=CHANGED),),
    priority=1,
    priority_reason="Training starts from wrong values because of it.",
    example="""\
def init(weight):
    if not isinstance(weight, DTensor):  # sharded weights keep their start value
        torch.nn.init.normal_(weight, std=0.02)
""",
    former_titles=("A parameter is passed over when the weights are initialised",),
)
