"""The diagnosis that an overridden train() was never called."""

from __future__ import annotations

from traincheck.diagnoses.diagnosis import Diagnosis, Match
from traincheck.relations.consistent.readiness import IN_FORCE

DIAGNOSIS = Diagnosis(
    slug="train-override-not-called",
    title="An overridden train() was never called",
    problem="The class overrides train() to freeze stages or keep statistics. A new module is in training mode "
    "already, so nothing calls train(), and the override has no effect: frozen stages train, too.",
    advice=(
        "Call model.train() before the first step, also for a new model.",
        "Or apply the effect of train() in the constructor as well.",
    ),
    explains=(Match(verb=IN_FORCE.verb, object=IN_FORCE.object),),
    priority=1,
    priority_reason="Parameters that should be frozen move because of it.",
    example="""\
class Net(nn.Module):
    def train(self, mode=True):
        super().train(mode)
        self.stem.requires_grad_(False)

model = Net()  # model.train() is missing
""",
)
