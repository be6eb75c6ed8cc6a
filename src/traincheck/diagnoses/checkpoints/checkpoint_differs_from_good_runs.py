"""The diagnosis that a checkpoint holds other entries than in good runs."""

from __future__ import annotations

from traincheck.diagnoses.diagnosis import Diagnosis, Match
from traincheck.vocab.properties import CHECKPOINT_HOLDS_ONLY

DIAGNOSIS = Diagnosis(
    slug="checkpoint-differs-from-good-runs",
    title="A checkpoint holds other entries than in good runs",
    problem="An entry of a checkpoint is missing, new, or of another type than in all good runs. A run that resumes "
    "from it may start again in part. If you changed the checkpoint on purpose, accept a run of the new version.",
    advice=(
        "Read the first line of evidence: it shows the entries that are missing or new.",
        "Check that you save the state of the model, the optimizer, the scheduler and the scaler, and all buffers.",
    ),
    explains=(Match(verb=CHECKPOINT_HOLDS_ONLY, setting=True),),
    priority=90,
    priority_reason="A defect in training itself matters more than its checkpoint.",
    example="""\
torch.save({"model": model.state_dict()}, path)  # the good runs also saved the optimizer
""",
)
