"""The diagnosis that no name in the loaded checkpoint matches the model."""

from __future__ import annotations

from traincheck.diagnoses.diagnosis import Diagnosis, Match
from traincheck.vocab.properties import TAKES_SOMETHING

DIAGNOSIS = Diagnosis(
    slug="checkpoint-matches-nothing",
    title="No name in the loaded checkpoint matches the model",
    problem="The checkpoint has none of the model's names, and strict=False suppresses the error. Nothing was "
    "loaded: the model continues from its current values.",
    advice=(
        "Compare the names in the checkpoint with the model's: is there a prefix, such as module. of a wrapped model?",
        "Check what load_state_dict returns: the missing and the unexpected keys.",
    ),
    explains=(Match(verb=TAKES_SOMETHING),),
    priority=7,
    priority_reason="A defect in training itself matters more than what it loaded.",
    example="""\
model.load_state_dict({"module." + name: value for name, value in state.items()}, strict=False)
""",
    former_titles=("Nothing of the checkpoint was loaded",),
)
