"""The diagnosis that gradient clipping skips some gradients."""

from __future__ import annotations

from traincheck.diagnoses.diagnosis import Diagnosis, Match
from traincheck.relations.api_output.call_results import SCALED_ALIKE

DIAGNOSIS = Diagnosis(
    slug="clipping-skips-gradients",
    title="Gradient clipping skips some gradients",
    problem="Clipping by norm scales all gradients by one factor, which keeps their direction. Here it scaled "
    "some gradients, and left others unchanged or scaled them differently.",
    advice=("Compare the list of gradients that your code scales with the list that it computes the norm from.",),
    explains=(Match(verb=SCALED_ALIKE.verb, object=SCALED_ALIKE.object),),
    priority=1,
    priority_reason="Diverging replicas and odd updates follow from it.",
    example="""\
norm = total_norm(all_gradients)
for gradient in gradients_of_matrices:  # biases are in the norm, but not scaled
    gradient.mul_(max_norm / norm)
""",
    former_titles=("Gradient clipping leaves some gradients out",),
)
