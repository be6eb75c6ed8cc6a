"""The diagnosis that a call returns NaN or infinity."""

from __future__ import annotations

from traincheck.diagnoses.diagnosis import Diagnosis, Match
from traincheck.relations.api_output.call_results import FINITE

DIAGNOSIS = Diagnosis(
    slug="non-finite-value",
    title="A call returns NaN or infinity",
    problem="All inputs of the call were finite, and its result is not.",
    advice=("Check the inputs of this call: a division by zero, a logarithm of zero, an overflow in low precision?",),
    explains=(Match(verb=FINITE.verb, object=FINITE.object),),
    priority=5,
    priority_reason="A wrong mode, wrong inputs or missing scaling explain it.",
    example="""\
loss = -(target * torch.log(probabilities)).sum()  # log(0)
""",
    former_titles=("A value that is not finite appears",),
)
