"""The diagnosis that attention merges its heads across positions."""

from __future__ import annotations

from traincheck.diagnoses.diagnosis import Diagnosis, Match
from traincheck.vocab.builtin_rules import MERGES_HEADS

DIAGNOSIS = Diagnosis(
    slug="heads-merged-across-positions",
    title="Attention merges its heads across positions",
    problem="Attention transposed its queries to (heads, positions, features). A reshape then merged its result to "
    "(positions, heads x features) without the transposition back. The sizes fit, so nothing fails. Each row now "
    "holds the features of several positions, and of some heads only.",
    advice=("Transpose before the reshape: y.transpose(1, 2).reshape(batch, positions, width).",),
    explains=(Match(verb=MERGES_HEADS.verb),),
    priority=8,
    priority_reason="Values of the loss and the gradients follow from it.",
    example="""\
y = F.scaled_dot_product_attention(q, k, v)  # (batch, heads, positions, features)
y = y.reshape(batch, positions, width)       # transpose(1, 2) is missing
""",
)
