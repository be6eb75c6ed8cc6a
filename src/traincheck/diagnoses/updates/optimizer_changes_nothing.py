"""The diagnosis that the optimizer step changes no parameter."""

from __future__ import annotations

from traincheck.diagnoses.diagnosis import Diagnosis, Match
from traincheck.relations.periodic.parameter_updates import DATA
from traincheck.vocab.builtin_rules import WITH_A_RATE
from traincheck.vocab.properties import CHANGES

DIAGNOSIS = Diagnosis(
    slug="optimizer-changes-nothing",
    title="The optimizer step changes no parameter",
    problem="The optimizer ran, but none of its parameters changed. Either its learning rate is zero, or they got no "
    "gradient: they are frozen, or they are not the ones that the model uses. (The optimizer may hold copies, or "
    "parameters from before the model was wrapped, moved or got new layers.)",
    advice=(
        "Compare the parameters in the optimizer with model.parameters(): are they the same objects, "
        "with requires_grad True?",
        "Print optimizer.param_groups[0]['lr']. A schedule may begin at zero, or reach zero long before the end.",
        "Build the optimizer after you freeze, wrap, move or replace layers.",
    ),
    explains=(
        Match(object=DATA, detail=CHANGES, grain=("call", "cycle")),
        Match(verb=WITH_A_RATE.verb, object=WITH_A_RATE.object, detail=WITH_A_RATE.detail),
    ),
    priority=2,
    priority_reason="It concerns all parameters, so it explains those that only some fail.",
    example="""\
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model.head = torch.nn.Linear(64, 10)  # the optimizer still holds the old head
""",
)
