"""The diagnosis that elements of accumulated micro-batches weigh differently."""

from __future__ import annotations

from traincheck.diagnoses.diagnosis import Diagnosis, Match
from traincheck.vocab.properties import IS_VERIFIED
from traincheck.vocab.verification import ACCUMULATION, KIND

DIAGNOSIS = Diagnosis(
    slug="micro-batches-weigh-differently",
    title="Elements of accumulated micro-batches weigh differently",
    problem="Gradients are accumulated over micro-batches with different numbers of elements (tokens that count, "
    "for example). Elements of one micro-batch weigh more than those of another, while in good runs all "
    "of them weighed the same. The gradient is not that of the whole batch.",
    advice=(
        "Sum the loss over the elements of each micro-batch, and divide by the number of elements of all micro- "
        "batches.",
        "Check that each micro-batch divides its loss by the same number.",
        "If only the last batch of an epoch is smaller, set drop_last=True or weigh it by its size.",
    ),
    explains=(Match(verb=IS_VERIFIED, api=f"{KIND}.{ACCUMULATION.name}"),),
    priority=9,
    priority_reason="The size of gradients and updates follows from it.",
    example="""\
loss = F.cross_entropy(logits, labels) / accumulation_steps  # a mean over another number of tokens each time
""",
)
