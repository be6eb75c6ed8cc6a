"""The diagnosis that ranks have diverged."""

from __future__ import annotations

from traincheck.diagnoses.diagnosis import Diagnosis, Match
from traincheck.vocab.properties import SAME_ON_RANKS

DIAGNOSIS = Diagnosis(
    slug="ranks-diverged",
    title="Ranks have diverged",
    problem="A value that should be the same on all ranks differs: a gradient was not reduced, or only one rank"
    " changed the value.",
    advice=("Check the last collective before this step, and the code that only one rank runs.",),
    explains=(Match(verb=SAME_ON_RANKS),),
    priority=3,
    priority_reason="The diagnoses of parameters, gradients and buffers are more precise.",
    example="""\
if rank == 0:
    scheduler.step()  # the learning rates diverge
""",
    former_titles=("Ranks have drifted apart",),
)
