"""The diagnosis that a copy of a model does not follow the trained model as in good runs."""

from __future__ import annotations

from traincheck.diagnoses.diagnosis import Diagnosis, Match
from traincheck.vocab.properties import COPY_IS_ONLY

DIAGNOSIS = Diagnosis(
    slug="copy-has-other-weights",
    title="A copy of the model has other weights than in good runs",
    problem="A model that is not trained here has the parameters of the trained model: a reference, a target network, "
    "or the policy of a rollout worker. In good runs its weights are those of the trained model at another time. So it "
    "was not updated when it should be, or it was when it should not.",
    advice=(
        "Read the evidence: it says which weights the copy has, and which it has in good runs.",
        "Look at the code that sends, loads or averages the weights, and at the condition under which it runs.",
        "If the copy has weights that the trained model never had, check that all parameters are sent, and that "
        "nothing trains the copy or shares its layers.",
    ),
    explains=(Match(verb=COPY_IS_ONLY, setting=True),),
    priority=11,
    priority_reason="What a copy computes follows from its weights.",
    example="""\
if step % 100 == 0:  # the good runs sent the weights after each update
    worker.load_weights(policy.state_dict())
""",
)
