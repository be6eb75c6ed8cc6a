"""The diagnosis that elements of accumulated micro-batches weigh differently."""

from __future__ import annotations

from traincheck.diagnoses.diagnosis import Diagnosis, Match
from traincheck.vocab.builtin_rules import OF_MICRO_BATCHES
from traincheck.vocab.properties import IS_VERIFIED
from traincheck.vocab.verification import ACCUMULATION, KIND

DIAGNOSIS = Diagnosis(
    slug="micro-batches-weigh-differently",
    title="Accumulated micro-batches have wrong weights",
    problem="The gradient that is accumulated over micro-batches is not that of the whole batch. Either the "
    "micro-batches have different numbers of elements (tokens that count, for example), and elements of one weigh more "
    "than those of another. Or each loss is divided by the number of micro-batches twice. Or an update has "
    "fewer of them than that number: the first one, or each one because the context that accumulates is missing.",
    advice=(
        "Sum the loss over the elements of each micro-batch, and divide by the number of elements of all micro- "
        "batches.",
        "Check that each micro-batch divides its loss by the same number, and only once. A trainer or an accelerator "
        "may divide it as well.",
        "Check the condition of the update: with `i % k == 0`, the first update has one micro-batch; use "
        "`(i + 1) % k == 0`.",
        "With Accelerate, put each step into `with accelerator.accumulate(model):`. Without it, "
        "`gradient_accumulation_steps` only divides each loss.",
        "If only the last batch of an epoch is smaller, set drop_last=True or weigh it by its size.",
    ),
    explains=(
        Match(verb=IS_VERIFIED, api=f"{KIND}.{ACCUMULATION.name}"),
        *(Match(verb=prop.verb, object=prop.object, detail=prop.detail) for prop in OF_MICRO_BATCHES),
    ),
    former_titles=("Elements of accumulated micro-batches weigh differently",),
    priority=9,
    priority_reason="The size of gradients and updates follows from it.",
    example="""\
loss = F.cross_entropy(logits, labels) / accumulation_steps  # a mean over another number of tokens each time
""",
)
