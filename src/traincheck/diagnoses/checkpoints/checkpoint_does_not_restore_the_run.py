"""The diagnosis that a run which resumes from a checkpoint goes on in another way."""

from __future__ import annotations

from traincheck.diagnoses.diagnosis import Diagnosis, Match
from traincheck.vocab.properties import IS_VERIFIED
from traincheck.vocab.verification import KIND, ROUND_TRIP

DIAGNOSIS = Diagnosis(
    slug="checkpoint-does-not-restore-the-run",
    title="A checkpoint does not restore the run",
    problem="TrainCheck put the saved state into the place of the live one. The model then gave other outputs, or the "
    "optimizer made another update. A run that resumes from this file goes on in another way, and nothing "
    "raises an error.",
    advice=(
        "Register state that the model changes as a buffer (register_buffer with persistent=True), or save it too.",
        "Call state_dict() of model and optimizer together, right before you save. A copy from an earlier step does "
        "not belong to the model.",
    ),
    explains=(Match(verb=IS_VERIFIED, api=f"{KIND}.{ROUND_TRIP.name}"),),
    priority=7,
    priority_reason="A defect in training itself matters more than its checkpoint.",
    example="""\
self.register_buffer("average", torch.zeros(8), persistent=False)
...
self.average.lerp_(x.mean(0), 0.1)  # in forward; the state dict does not hold it
""",
)
