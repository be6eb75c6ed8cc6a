"""The diagnosis that a replica changed between two updates."""

from __future__ import annotations

from traincheck.diagnoses.diagnosis import Diagnosis, Match
from traincheck.relations.consistent.ranks.replicas import THOUGH_KEPT, USED_DATA
from traincheck.vocab.properties import SAME_ON_RANKS

DIAGNOSIS = Diagnosis(
    slug="replica-changed-between-updates",
    title="A replica changed between two updates",
    problem="The parameter was the same on all ranks after an earlier update, and differs when the next one "
    "begins. Something other than an update wrote to it, and not on every rank: weights loaded, "
    "averaged, clipped or reinitialized on one rank, or overwritten memory.",
    advice=("Check the code that writes to parameters between two updates: does every rank run it?",),
    explains=(Match(verb=SAME_ON_RANKS, object=USED_DATA, note=f"*{THOUGH_KEPT}*"),),
    priority=1,
    priority_reason="Gradients that differ follow from it.",
    example="""\
if rank == 0:
    model.load_state_dict(average)  # on one rank only
""",
    former_titles=("A replica was changed between two updates",),
)
