"""The diagnosis that the moving average of a model does not average its weights."""

from __future__ import annotations

from traincheck.diagnoses.diagnosis import Diagnosis, Match
from traincheck.vocab.builtin_rules import AVERAGES_TRAINED

DIAGNOSIS = Diagnosis(
    slug="average-does-not-average",
    title="A moving average of weights does not average them",
    problem="The program updates a copy of the trained model as a moving average, a teacher or a target network. But "
    "each update takes nearly everything from the trained weights, or nothing, or shares that do not add up to one. Or "
    "the copy is the trained model itself.",
    advice=(
        "If an update keeps little of the average: exchange the decay and its complement, (1 - decay).",
        "If the average never moves: look which model the update reads from.",
        "If the copy is the model itself: make it with copy.deepcopy(model).",
        "If you want a plain copy: copy the weights without a decay.",
    ),
    explains=(Match(verb=AVERAGES_TRAINED.verb),),
    priority=4,
    priority_reason="The training goes on with a wrong target, or the wrong weights are evaluated.",
    example="""\
for average, parameter in zip(ema.parameters(), model.parameters()):
    average.mul_(1 - decay).add_(parameter, alpha=decay)  # should be decay, and 1 - decay
""",
)
