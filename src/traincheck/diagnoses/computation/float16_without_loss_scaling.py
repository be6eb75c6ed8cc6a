"""The diagnosis that float16 training runs without loss scaling."""

from __future__ import annotations

from traincheck.diagnoses.diagnosis import Diagnosis, Match
from traincheck.vocab.finding import Violation
from traincheck.vocab.properties import ARGUMENT_IS_SCALED


def _may_be_half(violation: Violation) -> bool:
    """Whether the rule is not only about other precisions: a program may multiply its loss for another reason."""
    rule = violation.invariant
    clauses = (*rule.precondition.clauses, *rule.experience.clauses)
    return all(clause.true_of(True) for clause in clauses if clause.fact == "half")


DIAGNOSIS = Diagnosis(
    slug="float16-without-loss-scaling",
    title="float16 training runs without loss scaling",
    problem="The forward pass ran under float16 autocast, but the loss went into the backward pass unscaled. "
    "Gradients below 6e-8 become zero in float16 (underflow), so parts of the model learn little or "
    "nothing.",
    advice=("Use torch.amp.GradScaler (scale, step, update), or autocast to bfloat16, which needs no scaler.",),
    explains=(Match(verb=ARGUMENT_IS_SCALED, test=_may_be_half),),
    priority=3,
    priority_reason="Zero gradients follow from it.",
    example="""\
with torch.autocast("cuda", torch.float16):
    loss = model(batch).mean()
loss.backward()  # scaler.scale(loss).backward()
""",
    former_titles=("Half precision without loss scaling",),
)
