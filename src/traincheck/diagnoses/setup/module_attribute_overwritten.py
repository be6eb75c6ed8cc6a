"""The diagnosis that other code overwrote an attribute of a module."""

from __future__ import annotations

from traincheck.diagnoses.diagnosis import Diagnosis, Match
from traincheck.vocab.properties import IS_AS_BUILT

DIAGNOSIS = Diagnosis(
    slug="module-attribute-overwritten",
    title="Other code overwrote an attribute of a module",
    problem="A number or name that the module was built with has changed before the first call of the model. "
    "Code that prepares the model (an engine's initialize, a wrapper) overwrites an attribute of the "
    "same name.",
    advice=(
        "Search the code between building the model and its first call for writes to this attribute.",
        "Check whether anything was derived from it in between: a placement, a rank, a file name.",
    ),
    explains=(Match(verb=IS_AS_BUILT),),
    priority=1,
    priority_reason="Placements, ranks and files that use the attribute are wrong because of it.",
    example="""\
for number, module in enumerate(model.modules()):
    module.id = number  # the experts have an id of their own
""",
    former_titles=("An attribute of a module was changed by other code",),
)
