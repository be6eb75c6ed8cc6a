"""The diagnosis that a setting was changed."""

from __future__ import annotations

from traincheck.diagnoses.diagnosis import Diagnosis, Match

DIAGNOSIS = Diagnosis(
    slug="setting-changed",
    title="A setting was changed",
    problem="The program runs with another setting than in its good runs. If you changed it on purpose, accept "
    "the run, or learn the book again.",
    advice=("If you did not, check the arguments and the configuration of this run.",),
    explains=(Match(setting=True),),
    priority=90,
    priority_reason="A changed setting is often intended, so any other finding comes first.",
    example="""\
python train.py --lr 0.01  # the good runs had --lr 0.1
""",
)
