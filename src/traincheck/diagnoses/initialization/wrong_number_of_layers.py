"""The diagnosis that a model has more or fewer layers than configured."""

from __future__ import annotations

from traincheck.diagnoses.diagnosis import Diagnosis, Match
from traincheck.relations.api_output.call_kinds import AS_MANY_LAYERS

DIAGNOSIS = Diagnosis(
    slug="wrong-number-of-layers",
    title="A model has more or fewer layers than configured",
    problem="You passed a number of layers to the module, and no class of modules occurs that often in the result.",
    advice=("Check how layers are counted and divided. Does // lose a remainder?",),
    explains=(Match(verb=AS_MANY_LAYERS.verb, object=AS_MANY_LAYERS.object),),
    priority=10,
    priority_reason="The model trains; other defects stop it from learning.",
    example="""\
layers = [Layer() for _ in range(num_layers // stages)] * stages  # 10 // 4 * 4 == 8
""",
    former_titles=("Fewer or more layers are built than configured",),
)
