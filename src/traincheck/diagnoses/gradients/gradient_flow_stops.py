"""The diagnosis that gradients stop at a call."""

from __future__ import annotations

from traincheck.diagnoses.diagnosis import Diagnosis, Match
from traincheck.relations.api_output.call_results import REQUIRES_GRAD
from traincheck.vocab.builtin_rules import REACHED, WITH_GRADIENTS_ON

DIAGNOSIS = Diagnosis(
    slug="gradient-flow-stops",
    title="Gradients stop at a call",
    problem="An input or a parameter of the call requires a gradient and does not get one. The graph ends here "
    "(detach, .item(), .data, no_grad), the backward of a custom function returns None, or a replaced computation does "
    "not use the parameter.",
    advice=(
        "Look for the code that takes the result out of the graph.",
        "If a custom autograd.Function is named: its backward must return a gradient for each input that needs one.",
        "If only the bias or the weight of a layer has none: does a kernel or a tensor subclass replace the layer?",
    ),
    explains=(
        Match(verb=REQUIRES_GRAD.verb, object=REQUIRES_GRAD.object),
        Match(verb=REACHED.verb, object=REACHED.object, detail=REACHED.detail),
        Match(verb=WITH_GRADIENTS_ON.verb, object=WITH_GRADIENTS_ON.object, detail=WITH_GRADIENTS_ON.detail),
    ),
    priority=5,
    priority_reason="Training in the wrong mode or with frozen parameters explains it.",
    example="""\
scale = norm(x).item()  # a number: no gradient flows through it
loss = (x / scale).sum()
""",
    former_titles=("Gradients no longer flow through a call",),
)
