"""The diagnosis that training stops before the end of the data."""

from __future__ import annotations

from traincheck.diagnoses.diagnosis import Diagnosis, Match
from traincheck.vocab.properties import REACHES

DIAGNOSIS = Diagnosis(
    slug="run-stops-early",
    title="Training stops before the end of the data",
    problem="An epoch ended before the data loader had delivered all announced batches, although earlier epochs"
    " were complete. If training ends there, its last epochs are missing: the total number of steps "
    "(max_steps) is too low.",
    advice=("Check how the total number of steps is computed. Does a division round down, or skip the last group?",),
    explains=(Match(verb=REACHES, api="loader.*"),),
    priority=8,
    priority_reason="It concerns the end of a run; earlier defects matter more.",
    example="""\
max_steps = epochs * (len(loader) // accumulation_steps)  # drops the last group of every epoch
""",
    former_titles=("The run stops before the end of its data",),
)
