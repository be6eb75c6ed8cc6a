"""The diagnosis that the calls which drive training follow each other as in no good run."""

from __future__ import annotations

from traincheck.diagnoses.diagnosis import Diagnosis, Match
from traincheck.vocab.properties import FOLLOWS_ONLY

DIAGNOSIS = Diagnosis(
    slug="calls-follow-in-new-order",
    title="Calls follow each other in a new order",
    problem="No good run made these two calls one after the other. A call is missing between them, is new, or has "
    "moved. If you changed the loop on purpose, accept a run of the new version.",
    advice=(
        "Read the first line of evidence: it shows the two calls, and what follows the first one in good runs.",
        "Look for the missing or moved call around the line named here.",
    ),
    explains=(Match(verb=FOLLOWS_ONLY, setting=True),),
    priority=84,
    priority_reason="A change of the loop may be intended, and a more specific finding says what is wrong with it.",
    example="""\
loss.backward()
optimizer.step()
optimizer.zero_grad()  # the good runs also called scheduler.step()
""",
)
