"""The diagnosis that training runs in evaluation mode."""

from __future__ import annotations

from traincheck.diagnoses.diagnosis import Diagnosis, Match
from traincheck.vocab.builtin_rules import STATISTICS_SET
from traincheck.vocab.properties import CONTAINS_CALL, PRECEDED_BY, RUNS_IN

DIAGNOSIS = Diagnosis(
    slug="training-in-evaluation-mode",
    title="Training runs in evaluation mode",
    problem="The model was called with gradients enabled but in evaluation mode: nothing called train() after the last "
    "eval(), or after the model was built in evaluation mode. Dropout is off and batch norm statistics are no longer "
    "updated. If only batch normalisation is in evaluation mode and nothing was loaded, it does not normalise at all.",
    advice=(
        "Call model.train() at the start of every epoch, or right after validation.",
        "Look for the last model.eval() before this step.",
    ),
    explains=(
        Match(verb=CONTAINS_CALL, object="*.forward", detail="training=*", evidence="here *"),
        Match(verb=PRECEDED_BY, object="*.forward", detail="training=*"),
        Match(verb=RUNS_IN, object="*.forward", detail="training mode"),
        Match(verb=STATISTICS_SET.verb, object=STATISTICS_SET.object),
    ),
    priority=1,
    priority_reason="The mode changes what a model computes, so other differences follow from it.",
    example="""\
model.eval()
validate(model)
for batch in loader:  # model.train() is missing
    train_step(model, batch)
""",
)
