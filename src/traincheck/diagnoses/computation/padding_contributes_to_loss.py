"""The diagnosis that padding contributes to the loss."""

from __future__ import annotations

from traincheck.diagnoses.diagnosis import Diagnosis, Match
from traincheck.vocab.properties import IS_VERIFIED
from traincheck.vocab.verification import KIND, PADDING_LOSS

DIAGNOSIS = Diagnosis(
    slug="padding-contributes-to-loss",
    title="Padding contributes to the loss",
    problem="The loss has a gradient at positions that the mask (or the lengths) excludes, while in good runs it "
    "had none. The model learns to predict padding, and the number of padded positions scales its "
    "gradients.",
    advice=(
        "Check that labels at padded positions are the ignore_index of the loss (-100 by default).",
        "Multiply the loss of each position by the mask, and divide by the sum of the mask.",
        "Check that labels and mask are shifted in the same way.",
    ),
    explains=(Match(verb=IS_VERIFIED, api=f"{KIND}.{PADDING_LOSS.name}"),),
    priority=9,
    priority_reason="Values of the loss and the gradients follow from it.",
    example="""\
loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten())  # ignore_index=pad_id is missing
""",
)
