"""The diagnosis that a flag was set where nothing reads it."""

from __future__ import annotations

from traincheck.diagnoses.diagnosis import Diagnosis, Match
from traincheck.vocab.builtin_rules import UNREAD_IS_READ

DIAGNOSIS = Diagnosis(
    slug="flag-without-effect",
    title="A flag was set where nothing reads it",
    problem="Your program set requires_grad of a module, or a misspelled attribute of a parameter. Python accepts "
    "both, and neither has an effect: the part that you meant to freeze is trained.",
    advice=(
        "Call module.requires_grad_(False), which sets the flag of each parameter.",
        "Compare the name of the attribute with requires_grad.",
    ),
    explains=(Match(verb=UNREAD_IS_READ.verb, object=UNREAD_IS_READ.object),),
    priority=3,
    priority_reason="It decides which parameters are trained; a wrong loop matters more.",
    example="""\
model.encoder.requires_grad = False  # should be model.encoder.requires_grad_(False)
""",
)
