"""The diagnosis that replicas do not start with the same parameters."""

from __future__ import annotations

from traincheck.diagnoses.diagnosis import Diagnosis, Match
from traincheck.relations.consistent.ranks.replicas import FIRST_DATA, USED_DATA
from traincheck.vocab.properties import SAME_ON_RANKS

DIAGNOSIS = Diagnosis(
    slug="replicas-start-differently",
    title="Replicas do not start with the same parameters",
    problem="A parameter that should be the same on all ranks has different initial values. The weights were "
    "not broadcast to all ranks at the start, or did not fully arrive.",
    advice=("Check the code that broadcasts or loads the initial weights: does every rank get all of them?",),
    explains=(Match(verb=SAME_ON_RANKS, object=(USED_DATA, FIRST_DATA)),),
    priority=2,
    priority_reason="It exists before the first gradient.",
    example="""\
torch.manual_seed(rank)
model = Net()  # every rank starts with its own weights
""",
    former_titles=("Replicas do not begin with the same parameters",),
)
