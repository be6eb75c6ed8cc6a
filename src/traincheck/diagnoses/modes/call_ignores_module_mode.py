"""The diagnosis that a call ignores the mode of its module."""

from __future__ import annotations

from traincheck.diagnoses.diagnosis import Diagnosis, Match
from traincheck.vocab.properties import ARGUMENT_AGREES

DIAGNOSIS = Diagnosis(
    slug="call-ignores-module-mode",
    title="A call ignores the mode of its module",
    problem="A flag of this call (training=...) differs from the training flag of the module around it. Dropout"
    " or batch statistics are on in evaluation mode, or off in training mode.",
    advice=("Pass training=self.training to the call.",),
    explains=(Match(verb=ARGUMENT_AGREES),),
    priority=10,
    priority_reason="A model in the wrong mode explains it.",
    example="""\
x = F.dropout(x, 0.1)  # training defaults to True
""",
)
