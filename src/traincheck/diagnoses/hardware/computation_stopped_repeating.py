"""The diagnosis that steps no longer repeat exactly."""

from __future__ import annotations

from traincheck.diagnoses.diagnosis import Diagnosis, Match
from traincheck.relations.consistent.replayed_steps import DECIDED

DIAGNOSIS = Diagnosis(
    slug="computation-stopped-repeating",
    title="Steps no longer repeat exactly",
    problem="Repeated steps gave the same bits so far, and from this step on none does. Either the program now "
    "does something that TrainCheck cannot execute again, or the device is permanently defective. "
    "(Examples are a state outside the model that its forward uses, or random numbers from a "
    "separate generator.)",
    advice=(
        "Check what changes in the program at this step: a phase, a schedule, what a forward draws or counts.",
        "Screen the device against fingerprints from a healthy one: traincheck sdc screen.",
        "Look for errors that the machine logged (ECC, Xid, machine checks). Remove the device if they recur.",
    ),
    explains=(Match(verb=DECIDED.verb, object=DECIDED.object),),
    priority=1,
    priority_reason="Every later value depends on the wrong result.",
    example="""\
if epoch >= 3:
    x = x + torch.randn(x.shape, generator=self.noise)  # a generator of its own
""",
    former_titles=("A computation does not repeat any more",),
)
