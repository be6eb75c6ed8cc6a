"""The diagnosis that a resumed training begins its schedule again."""

from __future__ import annotations

from traincheck.diagnoses.diagnosis import Diagnosis, Match
from traincheck.vocab.builtin_rules import RESTORES_POSITION

DIAGNOSIS = Diagnosis(
    slug="resumed-schedule-restarts",
    title="A resumed training begins its schedule again",
    problem="The program restores the optimizer from a checkpoint and goes on training, but the scheduler starts at "
    "its beginning. It warms up again, or returns to the largest rate, so the learning rate takes another course.",
    advice=(
        "Save scheduler.state_dict() in the checkpoint, and call scheduler.load_state_dict when you resume.",
        "If you build a scheduler for a resumed run, give it the number of updates so far as last_epoch.",
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
