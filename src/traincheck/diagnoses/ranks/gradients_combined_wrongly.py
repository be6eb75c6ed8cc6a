"""The diagnosis that ranks combine gradients by another operation than a sum or a mean."""

from __future__ import annotations

from traincheck.diagnoses.diagnosis import Diagnosis, Match
from traincheck.vocab.builtin_rules import ARE_ADDED

DIAGNOSIS = Diagnosis(
    slug="gradients-combined-wrongly",
    title="Ranks combine gradients by a maximum, a minimum or a product",
    problem="Each rank holds a part of a gradient, or the gradient of its samples. A collective takes their maximum, "
    "minimum or product. The result is the same on all ranks, but it is the derivative of no loss.",
    advice=(
        "Pass `op=dist.ReduceOp.SUM`, which is the default, or `AVG`.",
        "If you need a maximum over ranks (a scale, a norm), compute it in a tensor of its own.",
    ),
    explains=(Match(verb=ARE_ADDED.verb, object=ARE_ADDED.object, detail=ARE_ADDED.detail),),
    priority=1,
    priority_reason="All gradients that it combines are wrong, and the updates follow from them.",
    example="""\
dist.all_reduce(parameter.grad, op=dist.ReduceOp.MAX)
""",
)
