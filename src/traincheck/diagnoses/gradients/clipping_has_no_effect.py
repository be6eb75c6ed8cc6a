"""The diagnosis that gradient clipping does not clip."""

from __future__ import annotations

from traincheck.diagnoses.diagnosis import Diagnosis, Match
from traincheck.relations.api_output.call_results import MAX_NORM

DIAGNOSIS = Diagnosis(
    slug="clipping-has-no-effect",
    title="Gradient clipping does not clip",
    problem="After the call, the norm of the gradients is above the limit that you passed.",
    advice=("Check how the factor is computed: it is the smaller of 1 and limit / norm.",),
    explains=(Match(verb=MAX_NORM.verb, object=MAX_NORM.object),),
    priority=11,
    priority_reason="Missing or wrong gradients explain it.",
    example="""\
factor = max(1.0, max_norm / norm)  # should be min
""",
)
