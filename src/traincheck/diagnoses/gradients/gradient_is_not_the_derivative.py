"""The diagnosis that a backward returned another gradient than the derivative of what was computed."""

from __future__ import annotations

from traincheck.diagnoses.diagnosis import Diagnosis, Match
from traincheck.vocab.properties import IS_VERIFIED
from traincheck.vocab.verification import DERIVATIVE, KIND

DIAGNOSIS = Diagnosis(
    slug="gradient-is-not-the-derivative",
    title="A gradient is not the derivative of the loss",
    problem="TrainCheck executed the computation of the loss again with slightly changed parameters. The loss does not "
    "change as the gradient says. So the optimizer follows another direction than the loss, and training may still "
    "seem to work.",
    advice=(
        "Check the backward of the named function with torch.autograd.gradcheck, in float64.",
        "In the named module, look for tensors that are changed through .data, by NumPy, or by a custom kernel after "
        "an operation has saved them for the backward.",
        "Look for activation checkpointing whose second forward differs from the first: preserve_rng_state=False, or a "
        "forward that depends on a counter.",
        "Some functions approximate their derivative on purpose, such as the adjoint of a differential equation. The "
        "finding says how far it is off; a smaller tolerance of the solver brings it closer.",
    ),
    explains=(Match(verb=IS_VERIFIED, api=f"{KIND}.{DERIVATIVE.name}"),),
    priority=2,
    priority_reason="Every update follows the wrong gradient. A recomputation that differs names its cause better.",
    example="""\
class Scale(torch.autograd.Function):
    @staticmethod
    def backward(ctx, grad):
        rows, scale = ctx.saved_tensors
        return grad * scale, (grad * rows).mean(0)  # the derivative is the sum
""",
)
