"""The diagnosis that the loss gets another kind of input than in good runs."""

from __future__ import annotations

from traincheck.diagnoses.diagnosis import Diagnosis, Match
from traincheck.vocab.properties import ARGUMENT_VALUES

DIAGNOSIS = Diagnosis(
    slug="unexpected-loss-input",
    title="The loss gets another kind of input than it expects",
    problem="The prediction that goes into the loss is of another kind than the loss expects, or than in good runs. "
    "Probabilities come from a sigmoid or a softmax; the loss may expect scores (logits), or the other way round. "
    "Or the classes are in another dimension than the loss expects, because of a softmax or a reshape.",
    advice=(
        "Check which function you apply to the model output before the loss: cross_entropy and "
        "binary_cross_entropy_with_logits expect raw scores.",
        "Check the dimension of classes: log_softmax has to run over it, and only permute or transpose may move it.",
    ),
    explains=(Match(verb=ARGUMENT_VALUES),),
    priority=10,
    priority_reason="It changes how well a model learns; a broken loop matters more.",
    example="""\
loss = F.cross_entropy(model(x).softmax(dim=-1), labels)  # expects logits
""",
    former_titles=(
        "The loss is given what it does not expect",
        "The loss gets another kind of input than in good runs",
    ),
)
