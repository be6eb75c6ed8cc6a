"""The diagnosis that an optimizer is built again and loses its state."""

from __future__ import annotations

from traincheck.diagnoses.diagnosis import Diagnosis, Match
from traincheck.vocab.builtin_rules import KEEPS_STATE

DIAGNOSIS = Diagnosis(
    slug="optimizer-state-lost",
    title="An optimizer is built again in each pass and loses its state",
    problem="The program builds the same optimizer again for each pass over the data. The new one has no state: "
    "the momentum and the step count of the one before it are gone, and so are changes of its learning rate.",
    advice=(
        "Build the optimizer (and its scheduler) once, before the loop.",
        "If the new beginning is on purpose, accept it: traincheck accept.",
    ),
    explains=(Match(verb=KEEPS_STATE.verb, object=KEEPS_STATE.object, detail=KEEPS_STATE.detail),),
    priority=4,
    priority_reason="It weakens each update, while others make it wrong.",
    example="""\
for epoch in range(10):
    optimizer = torch.optim.AdamW(model.parameters())  # belongs in front of the loop
    for batch in loader:
        step(model, optimizer, batch)
""",
)
