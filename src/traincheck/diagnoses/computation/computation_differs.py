"""The diagnosis that a program computes something else than in good runs, with or without gradients."""

from __future__ import annotations

from traincheck.diagnoses.diagnosis import Diagnosis, Match
from traincheck.vocab.properties import HAS_ONLY, USES_ONLY_NUMBERS

DIAGNOSIS = Diagnosis(
    slug="computation-differs",
    title="The model computes something else than in good runs",
    problem="A model, a loss or a function of the program computes something that no good run computed, or leaves out "
    "what all of them computed. If you changed it on purpose, accept a run of the new version.",
    advice=(
        "Read the first line of evidence: it shows an operation as it is here and as it was in the good runs. `-` "
        "stands for an input without gradients.",
        "Compare this module or function, or the loss if it says `program`, with the version of the good runs.",
    ),
    explains=(Match(verb=(HAS_ONLY, USES_ONLY_NUMBERS), setting=True),),
    priority=85,
    priority_reason="A change of the model is often intended, and a more specific finding says what is wrong with it.",
    example="""\
loss = F.cross_entropy(logits.softmax(-1), labels)  # the good runs passed the logits
""",
)
