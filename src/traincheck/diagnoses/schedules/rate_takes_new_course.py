"""The diagnosis that the learning rate does something that it did in no good run."""

from __future__ import annotations

from traincheck.diagnoses.diagnosis import Diagnosis, Match
from traincheck.vocab.properties import TAKES_ONLY_COURSES

DIAGNOSIS = Diagnosis(
    slug="rate-takes-new-course",
    title="The learning rate takes a new course",
    problem="From one update to the next, the learning rate rises, falls, stays or is zero, which it did in no good "
    "run, or it ends elsewhere. If you changed the schedule on purpose, accept a run of the new version.",
    advice=(
        "Check where the program steps its scheduler: once for each update, or once for each epoch.",
        "Compare the number of steps that the scheduler was built for with the number that it takes.",
    ),
    explains=(Match(verb=TAKES_ONLY_COURSES, setting=True),),
    priority=82,
    priority_reason="A schedule may be changed on purpose, and a more specific finding says what is wrong with it.",
    example="""\
scheduler = LinearLR(optimizer, total_iters=epochs)  # it is stepped after each batch
""",
)
