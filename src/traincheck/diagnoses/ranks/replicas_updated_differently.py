"""The diagnosis that replicas with the same gradients got different updates."""

from __future__ import annotations

from traincheck.diagnoses.diagnosis import Diagnosis, Match
from traincheck.relations.consistent.ranks.replicas import DATA, THOUGH_ALIKE
from traincheck.vocab.properties import SAME_ON_RANKS

DIAGNOSIS = Diagnosis(
    slug="replicas-updated-differently",
    title="Replicas with the same gradients got different updates",
    problem="A parameter and its gradient were the same on all ranks before the update, and the parameter "
    "differs after it. Something between reading the gradient and writing the parameter treats the "
    "ranks differently (clipping, scaling, state or settings of the optimizer), or the hardware "
    "computed wrongly.",
    advice=(
        "Check the code that clips or scales gradients: does it handle this parameter on every rank?",
        "Compare the settings and the state of the optimizer between ranks.",
    ),
    explains=(Match(verb=SAME_ON_RANKS, object=DATA, note=f"*{THOUGH_ALIKE}*"),),
    priority=1,
    priority_reason="Replicas that diverge here differ in every later step.",
    example="""\
if rank == 0:
    torch.nn.utils.clip_grad_norm_(norms, 1.0)  # on one rank only
optimizer.step()
""",
    former_titles=("Replicas got different updates out of the same gradients",),
)
