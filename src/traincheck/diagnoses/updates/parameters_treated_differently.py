"""The diagnosis that a program treats parameters otherwise than in good runs."""

from __future__ import annotations

from traincheck.diagnoses.diagnosis import Diagnosis, Match
from traincheck.vocab.properties import TREATS_ONLY_SO

DIAGNOSIS = Diagnosis(
    slug="parameters-treated-differently",
    title="Parameters are treated differently than in good runs",
    problem="A parameter is frozen, missing in the optimizer, in another parameter group, shared or gone, as in no "
    "good run. Or its optimizer state has another precision, or its schedule moves it by another factor. If you "
    "changed this on purpose, accept a run of the new version.",
    advice=(
        "Read the first line of evidence: it shows the parameters as they are here and as they were in the good runs.",
        "Check the code that builds the model and the parameter groups, and each `requires_grad`.",
    ),
    explains=(Match(verb=TREATS_ONLY_SO, setting=True),),
    priority=83,
    priority_reason="It may be intended, and a more specific finding says what is wrong with these parameters.",
    example="""\
optimizer = torch.optim.AdamW(model.head.parameters(), lr=1e-3)  # the good runs passed all parameters
""",
)
