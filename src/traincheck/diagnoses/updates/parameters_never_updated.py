"""The diagnosis that some parameters with a gradient are never updated."""

from __future__ import annotations

from traincheck.diagnoses.diagnosis import Diagnosis, Match
from traincheck.relations.periodic.parameter_updates import DATA
from traincheck.vocab.builtin_rules import IS_PART_OF_ITS_MODEL
from traincheck.vocab.properties import CHANGES

DIAGNOSIS = Diagnosis(
    slug="parameters-never-updated",
    title="Some parameters with a gradient are never updated",
    problem="These parameters require a gradient and got one, but the optimizer step left them unchanged. "
    "Either no optimizer holds them, or the optimizer that does skips them.",
    advice=(
        "Check that every trainable parameter is in a parameter group of the optimizer. An optimizer keeps the former "
        "parameters when a module or a load (assign=True) puts others in their place.",
        "If they should be frozen, set requires_grad to False.",
    ),
    explains=(
        Match(object=DATA, detail=CHANGES, grain=DATA),
        Match(verb=IS_PART_OF_ITS_MODEL.verb, object=IS_PART_OF_ITS_MODEL.object, detail=IS_PART_OF_ITS_MODEL.detail),
    ),
    priority=4,
    priority_reason="A step that changes nothing at all explains it.",
    example="""\
optimizer = torch.optim.Adam(model.encoder.parameters())  # the decoder trains, too
""",
)
