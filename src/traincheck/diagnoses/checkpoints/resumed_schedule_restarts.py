"""The diagnosis that a resumed training begins its schedule again."""

from __future__ import annotations

from traincheck.diagnoses.diagnosis import Diagnosis, Match
from traincheck.vocab.builtin_rules import RESTORES_POSITION

DIAGNOSIS = Diagnosis(
    slug="resumed-schedule-restarts",
    title="A resumed training begins its schedule again",
    problem="The program restores the optimizer from a checkpoint and goes on training. The checkpoint also holds the "
    "state of the scheduler, but the scheduler starts at its beginning. The learning rate takes another course.",
    advice=(
        "Call scheduler.load_state_dict with the state in the checkpoint.",
        "If the new beginning is on purpose, accept it: traincheck accept.",
    ),
    explains=(Match(verb=RESTORES_POSITION.verb, object=RESTORES_POSITION.object, detail=RESTORES_POSITION.detail),),
    priority=4,
    priority_reason="It changes the size of later updates, while others make each update wrong.",
    example="""\
checkpoint = torch.load(path)
model.load_state_dict(checkpoint["model"])
optimizer.load_state_dict(checkpoint["optimizer"])  # and scheduler.load_state_dict(checkpoint["scheduler"])
""",
)
