"""The diagnosis that parameter groups give biases and normalization weights the weight decay of matrices."""

from __future__ import annotations

from traincheck.diagnoses.diagnosis import Diagnosis, Match
from traincheck.vocab.builtin_rules import DECAYS_MATRICES

DIAGNOSIS = Diagnosis(
    slug="weight-decay-misplaced",
    title="Parameter groups decay the wrong parameters",
    problem="The program separates biases and normalization weights from matrices in the groups of an optimizer. "
    "But they get the weight decay and the matrices get none, or all groups have the same settings.",
    advice=(
        "Set the weight decay of the group with matrices, and 0 for biases and normalization weights.",
        "If all parameters should decay in the same way: pass them as one group.",
    ),
    explains=(Match(verb=DECAYS_MATRICES.verb),),
    priority=5,
    priority_reason="It changes how training regularizes; the gradients are right.",
    example="""\
groups = [
    {"params": [p for p in model.parameters() if p.ndim >= 2], "weight_decay": 0.0},  # should be 0.05
    {"params": [p for p in model.parameters() if p.ndim < 2], "weight_decay": 0.05},  # should be 0.0
]
""",
)
