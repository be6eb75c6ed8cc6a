"""The diagnosis that a checkpoint is incomplete."""

from __future__ import annotations

from traincheck.diagnoses.diagnosis import Diagnosis, Match
from traincheck.vocab.properties import IS_SAVED

DIAGNOSIS = Diagnosis(
    slug="checkpoint-incomplete",
    title="A checkpoint is incomplete",
    problem="Parameters or buffers of the model are missing from the saved checkpoint. After loading it, they "
    "keep their initial values.",
    advice=(
        "Save the whole state_dict(), including frozen parameters and buffers, under the names that loading expects.",
    ),
    explains=(Match(verb=IS_SAVED),),
    priority=7,
    priority_reason="A defect in training itself matters more than its checkpoint.",
    example="""\
torch.save({n: p for n, p in model.named_parameters() if p.requires_grad}, path)  # frozen ones are missing
""",
)
