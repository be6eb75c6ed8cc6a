"""The diagnosis that the backward pass leaves no gradient."""

from __future__ import annotations

from traincheck.diagnoses.diagnosis import Diagnosis, Match
from traincheck.relations.periodic.parameter_updates import GRAD
from traincheck.vocab.properties import IS_FILLED

DIAGNOSIS = Diagnosis(
    slug="backward-leaves-no-gradient",
    title="The backward pass leaves no gradient",
    problem="A backward pass ran, but the parameters in the optimizer got no gradient from it. Either the loss "
    "does not depend on them (detach, .item(), no_grad), or they are frozen.",
    advice=("Check which tensors the loss is computed from, and requires_grad of these parameters.",),
    explains=(Match(object=GRAD, detail=IS_FILLED),),
    priority=5,
    priority_reason="A wrong optimizer or a missing update explains it.",
    example="""\
features = encoder(images).detach()  # the encoder gets no gradient
head(features).mean().backward()
""",
    former_titles=("The backward leaves no gradient",),
)
