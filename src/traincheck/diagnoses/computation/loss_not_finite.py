"""The diagnosis that the loss is NaN or infinite."""

from __future__ import annotations

from traincheck.diagnoses.diagnosis import Diagnosis, Match
from traincheck.vocab.builtin_rules import FINITE_LOSS

DIAGNOSIS = Diagnosis(
    slug="loss-not-finite",
    title="The loss is NaN or infinite",
    problem="A backward began from a loss that is no number. Its gradients make every parameter NaN, and the program "
    "goes on without learning anything.",
    advice=(
        "Go back to a checkpoint from before this step: the weights after it are lost.",
        "Look at the losses of the steps before. Did they grow? Lower the learning rate, or clip the gradients.",
        "Did the loss break in a single step? Look at its batch: a log or sqrt of zero, a division by an empty mask.",
        "torch.autograd.set_detect_anomaly(True) names the operation whose backward first gives NaN.",
    ),
    explains=(Match(verb=FINITE_LOSS.verb),),
    priority=1,
    priority_reason="A NaN spreads to all values, and other rules break because of it.",
    example="""\
loss = -(target * torch.log(probabilities)).sum()  # log(0)
loss.backward()
optimizer.step()
""",
)
