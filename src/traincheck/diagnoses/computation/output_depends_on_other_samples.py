"""The diagnosis that the output of a sample depends on other samples."""

from __future__ import annotations

from traincheck.diagnoses.diagnosis import Diagnosis, Match
from traincheck.vocab.properties import IS_VERIFIED
from traincheck.vocab.verification import KIND, MIXED_SAMPLES, SAMPLES

DIAGNOSIS = Diagnosis(
    slug="output-depends-on-other-samples",
    title="The output of a sample depends on other samples of its batch",
    problem="TrainCheck executed the call again with another sample in one place of the batch. The outputs of "
    "other samples changed. They must not, because each sample has a target of its own, because a data loader chose "
    "the samples, or because good runs showed it. The model mixes the samples of a batch.",
    advice=(
        "Check the layout of the named module: batch_first=False attends over the first dimension, which is the batch.",
        "Look for a view, reshape or transpose that merges the batch with another dimension.",
        "Look for statistics over the batch, such as a mean or a norm without dim, or F.normalize with dim=0.",
    ),
    explains=(Match(verb=IS_VERIFIED, api=(f"{KIND}.{SAMPLES.name}", f"{KIND}.{MIXED_SAMPLES.name}")),),
    priority=9,
    priority_reason="Values of the loss and the gradients follow from it.",
    example="""\
attention = nn.MultiheadAttention(64, 4)  # batch_first=True is missing: x is (batch, tokens, features)
""",
)
