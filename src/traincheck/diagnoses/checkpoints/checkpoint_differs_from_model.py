"""The diagnosis that a checkpoint differs from the live model."""

from __future__ import annotations

from traincheck.diagnoses.diagnosis import Diagnosis, Match
from traincheck.vocab.properties import SAVED_EQUALS_LIVE

DIAGNOSIS = Diagnosis(
    slug="checkpoint-differs-from-model",
    title="A checkpoint differs from the live model",
    problem="The saved values are not the ones that the program holds at this moment. They were changed or "
    "mixed up between state_dict() and the file, or they are from another time. A run that resumes from"
    " this checkpoint continues with a wrong model.",
    advice=("Check the code between state_dict() and the call that saves.",),
    explains=(Match(verb=SAVED_EQUALS_LIVE),),
    priority=7,
    priority_reason="A defect in training itself matters more than its checkpoint.",
    example="""\
state = {name: tensor.half() for name, tensor in model.state_dict().items()}
torch.save(state, path)  # not the live values
""",
    former_titles=("A checkpoint differs from what is live",),
)
