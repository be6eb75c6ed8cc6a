"""The diagnosis that the learning rate schedule does not fit the length of the run."""

from __future__ import annotations

from traincheck.diagnoses.diagnosis import Diagnosis, Match
from traincheck.relations.periodic.run_totals import TOTAL
from traincheck.vocab.builtin_rules import COUNTS_ITS_STEPS, IS_STEPPED, TO_DESCEND

DIAGNOSIS = Diagnosis(
    slug="schedule-does-not-fit-run",
    title="The learning rate schedule does not fit the length of the run",
    problem="The scheduler was built for another number of steps than the run makes, or nothing ever stepped it. "
    "A linear schedule that goes on after its end makes the learning rate negative.",
    advice=(
        "Compare the number of steps that the scheduler was built for with the number of optimizer steps.",
        "Check that the loop calls scheduler.step().",
        'With Lightning, set "interval" to "step" for a length in updates, and to "epoch" for one in epochs.',
    ),
    explains=(
        Match(object=TOTAL),
        Match(verb=IS_STEPPED.verb, object=IS_STEPPED.object),
        Match(verb=TO_DESCEND.verb, object=TO_DESCEND.object, detail=TO_DESCEND.detail),
        Match(verb=COUNTS_ITS_STEPS.verb, object=COUNTS_ITS_STEPS.object),
    ),
    priority=8,
    priority_reason="It changes how well a model learns, not whether it learns.",
    example="""\
scheduler = OneCycleLR(optimizer, 0.1, total_steps=1000)  # the run makes 300 steps
""",
)
