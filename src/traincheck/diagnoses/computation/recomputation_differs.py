"""The diagnosis that a recomputation under activation checkpointing gives other results."""

from __future__ import annotations

from traincheck.diagnoses.diagnosis import Diagnosis, Match
from traincheck.vocab.properties import IS_VERIFIED
from traincheck.vocab.verification import KIND, RECOMPUTATION

DIAGNOSIS = Diagnosis(
    slug="recomputation-differs",
    title="Activation checkpointing computes other results in the backward",
    problem="With activation checkpointing, the backward computes a part of the forward again. It got other "
    "results than the forward, so the gradients belong to another function than the loss. The named "
    "module is the first that differs.",
    advice=(
        "Look at the named module for random numbers that torch does not restore: preserve_rng_state=False, a "
        "generator of its own, or random numbers of Python or NumPy.",
        "Check whether the module changes its own state in each call, such as a counter, a cache or a weight "
        "normalized by power iteration.",
        "Check that nothing writes to parameters or buffers between the forward and the backward.",
    ),
    explains=(Match(verb=IS_VERIFIED, api=f"{KIND}.{RECOMPUTATION.name}"),),
    priority=1,
    priority_reason="Wrong gradients follow from it, and name the module less precisely.",
    example="""\
x = checkpoint(self.block, x, use_reentrant=False, preserve_rng_state=False)  # dropout draws another mask
""",
)
