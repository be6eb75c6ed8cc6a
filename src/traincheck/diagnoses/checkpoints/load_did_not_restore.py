"""The diagnosis that loading did not restore the saved values."""

from __future__ import annotations

from traincheck.diagnoses.diagnosis import Diagnosis, Match
from traincheck.vocab.properties import IS_LOADED, LIVE_EQUALS_LOADED

DIAGNOSIS = Diagnosis(
    slug="load-did-not-restore",
    title="Loading did not restore the saved values",
    problem="After the load, the model holds other values than the loaded checkpoint, or lacks some of its values. "
    "If the program loads a state that is the memory of the model itself, the load changes nothing. If it writes "
    "weights into the dictionary that state_dict() returns, only load_state_dict() brings them into the model.",
    advice=(
        "Compare the names in the checkpoint with the model's. Does strict=False hide a mismatch?",
        "If your program keeps weights in memory, copy them: copy.deepcopy(model.state_dict()).",
        "If your program changes a state, load it afterwards: model.load_state_dict(state).",
        "If one network follows another, build it as a copy: target = copy.deepcopy(network).",
    ),
    explains=(Match(verb=(LIVE_EQUALS_LOADED, IS_LOADED)),),
    priority=7,
    priority_reason="A defect in training itself matters more than what it loaded.",
    example="""\
model.load_state_dict(torch.load(path), strict=False)  # half of the names differ
""",
    former_titles=("Loading did not restore what was saved",),
)
