"""The diagnosis that ranks exchange messages that do not match."""

from __future__ import annotations

from traincheck.diagnoses.diagnosis import Diagnosis, Match
from traincheck.vocab.properties import MESSAGES

DIAGNOSIS = Diagnosis(
    slug="messages-do-not-match",
    title="Ranks exchange messages that do not match",
    problem="The size or type of a message differs from the one that its receiver expects, or the message "
    "arrives with other values. The part that does not fit is cut off, or filled with old memory.",
    advice=(
        "Check how each rank computes the size of its messages (a capacity, a number of tokens). Do the"
        " ranks agree on it first, for example by a maximum over the group?",
    ),
    explains=(Match(verb=MESSAGES),),
    priority=2,
    priority_reason="Ranks that skip a collective explain it.",
    example="""\
capacity = int(tokens.shape[0] * 1.25)  # differs between ranks
dist.send(tokens[:capacity], dst=1)
""",
    former_titles=("Ranks exchange blocks that do not fit together",),
)
