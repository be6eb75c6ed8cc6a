"""The diagnosis that a resumed training does not restore the state of its optimizer."""

from __future__ import annotations

from traincheck.diagnoses.diagnosis import Diagnosis, Match
from traincheck.vocab.builtin_rules import RESTORES_STATE

DIAGNOSIS = Diagnosis(
    slug="resumed-without-optimizer-state",
    title="A resumed training does not restore its optimizer",
    problem="The program loads the weights of a checkpoint and goes on training. The checkpoint also holds the state "
    "of the optimizer, but the optimizer starts without it. The momentum and the step count are lost.",
    advice=(
        "Call optimizer.load_state_dict with the state in the checkpoint, after you build the optimizer.",
        "If you restore the state already, check that no later code builds the optimizer again.",
        "If the new beginning is on purpose, accept it: traincheck accept.",
    ),
    explains=(Match(verb=RESTORES_STATE.verb, object=RESTORES_STATE.object, detail=RESTORES_STATE.detail),),
    priority=4,
    priority_reason="It weakens the next updates, while others make each update wrong.",
    example="""\
checkpoint = torch.load(path)
model.load_state_dict(checkpoint["model"])
scheduler.load_state_dict(checkpoint["scheduler"])  # and optimizer.load_state_dict(checkpoint["optimizer"])
""",
)
