"""The diagnosis that a setting was written where nothing reads it."""

from __future__ import annotations

from traincheck.diagnoses.diagnosis import Diagnosis, Match
from traincheck.vocab.builtin_rules import UNREAD_IS_READ

DIAGNOSIS = Diagnosis(
    slug="flag-without-effect",
    title="A setting was written where nothing reads it",
    problem="Your program set requires_grad of a module, a misspelled attribute of a parameter, or a setting on the "
    "optimizer itself. Python accepts each of them, and none has an effect.",
    advice=(
        "To freeze a part, call module.requires_grad_(False), which sets the flag of each parameter.",
        "To change a learning rate, write to each group: for group in optimizer.param_groups: group['lr'] = rate.",
        "Compare the name of the attribute with the one that torch reads.",
    ),
    former_titles=("A flag was set where nothing reads it",),
    explains=(Match(verb=UNREAD_IS_READ.verb, object=UNREAD_IS_READ.object),),
    priority=3,
    priority_reason="It decides which parameters are trained and how fast; a wrong loop matters more.",
    example="""\
model.encoder.requires_grad = False  # should be model.encoder.requires_grad_(False)
""",
)
