"""The diagnosis that a model is evaluated in training mode."""

from __future__ import annotations

from traincheck.diagnoses.diagnosis import Diagnosis, Match
from traincheck.vocab.builtin_rules import IN_EVALUATION_MODE

DIAGNOSIS = Diagnosis(
    slug="evaluation-in-training-mode",
    title="A model is evaluated in training mode",
    problem="Between two training steps, the program calls the trained model several times with gradients off, and the "
    "model is still in training mode. Dropout makes the results random, and batch norm uses the statistics of each "
    "batch and changes its running ones.",
    advice=(
        "Call model.eval() before the evaluation, and model.train() after it.",
        "torch.no_grad() does not change the mode of a model.",
    ),
    explains=(Match(verb=IN_EVALUATION_MODE.verb, object=IN_EVALUATION_MODE.object, detail=IN_EVALUATION_MODE.detail),),
    priority=9,
    priority_reason="It changes what an evaluation measures; a broken training matters more.",
    example="""\
with torch.no_grad():
    for x, y in test_loader:  # model.eval() is missing
        correct += (model(x).argmax(dim=1) == y).sum()
""",
)
