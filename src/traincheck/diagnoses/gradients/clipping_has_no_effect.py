"""The diagnosis that gradient clipping does not clip."""

from __future__ import annotations

from traincheck.diagnoses.diagnosis import Diagnosis, Match
from traincheck.relations.api_output.call_results import MAX_NORM
from traincheck.vocab.builtin_rules import CLIPPED_IN_TIME, CLIPPED_LAST, SEEN_BY_CLIPPING

DIAGNOSIS = Diagnosis(
    slug="clipping-has-no-effect",
    title="Gradient clipping does not clip",
    problem="The update may use gradients above the limit that you passed. The norm is above it after the call, or the "
    "call sees no gradients, a backward pass adds to them after it, or the update came before it. If you clip each "
    "micro-batch, the sum of the micro-batches is not what you clip.",
    advice=(
        "Call clipping after the last backward pass of an update, and in front of step().",
        "Call model.parameters() again in each step: a generator that was read once is empty.",
        "If your code clips itself, check the factor: it is the smaller of 1 and limit / norm.",
    ),
    explains=(
        Match(verb=MAX_NORM.verb, object=MAX_NORM.object),
        *(
            Match(verb=prop.verb, object=prop.object, detail=prop.detail)
            for prop in (SEEN_BY_CLIPPING, CLIPPED_LAST, CLIPPED_IN_TIME)
        ),
    ),
    priority=11,
    priority_reason="Missing or wrong gradients explain it.",
    example="""\
factor = max(1.0, max_norm / norm)  # should be min
""",
)
