"""The diagnosis that a restart loses a setting of the optimizer."""

from __future__ import annotations

from traincheck.diagnoses.diagnosis import Diagnosis, Match
from traincheck.vocab.properties import TAKES_OVER

DIAGNOSIS = Diagnosis(
    slug="optimizer-setting-lost-on-restart",
    title="A restart loses a setting of the optimizer",
    problem="The optimizer continues where another one stopped, but this setting has another value. The "
    "checkpoint does not keep it, or code recomputes it after loading. A lost initial_lr becomes the "
    "current learning rate, which the schedule then treats as its peak.",
    advice=("Save and load all entries of the parameter groups, or build the scheduler before you load the state.",),
    explains=(Match(verb=TAKES_OVER),),
    priority=1,
    priority_reason="Every later update uses the wrong setting.",
    example="""\
for group in optimizer.param_groups:
    group["initial_lr"] = group["lr"]  # after loading: the current rate, not the peak
""",
)
