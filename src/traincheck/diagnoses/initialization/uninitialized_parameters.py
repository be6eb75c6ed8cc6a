"""The diagnosis that parameters are used before they are initialized."""

from __future__ import annotations

from traincheck.diagnoses.diagnosis import Diagnosis, Match
from traincheck.vocab.builtin_rules import WRITTEN

DIAGNOSIS = Diagnosis(
    slug="uninitialized-parameters",
    title="Parameters are used before they are initialized",
    problem="to_empty() allocated memory for these parameters, and nothing wrote to it before the model was "
    "called. They hold arbitrary memory, so the first results are arbitrary numbers or NaN.",
    advice=(
        "Initialize every module after to_empty(). Does reset_parameters() of the model reach its submodules?",
        "If a checkpoint should have filled them, compare its names with those of the model.",
    ),
    explains=(Match(verb=WRITTEN.verb, object=WRITTEN.object, detail=WRITTEN.detail),),
    priority=1,
    priority_reason="Arbitrary parameters make every later value arbitrary.",
    example="""\
with torch.device("meta"):
    model = Net()
model.to_empty(device="cpu")  # nothing initializes the parameters
""",
    former_titles=("Parameters are used that nothing has initialised",),
)
