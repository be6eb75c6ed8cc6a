"""The diagnosis that ranks do not make the same collective calls."""

from __future__ import annotations

from traincheck.diagnoses.diagnosis import Diagnosis, Match
from traincheck.vocab.properties import CALLS_ON_RANKS

DIAGNOSIS = Diagnosis(
    slug="collective-calls-differ",
    title="Ranks do not make the same collective calls",
    problem="The collective calls of the ranks do not match: other calls, another order, or other sizes.",
    advice=("Look for branches that depend on the rank or on the data.",),
    explains=(Match(verb=CALLS_ON_RANKS),),
    priority=2,
    priority_reason="The diagnosis for skipped collectives is more precise.",
    example="""\
if loss.item() > 1.0:  # differs between ranks
    dist.all_reduce(loss)
""",
)
