"""The diagnosis that model parameters are not updated."""

from __future__ import annotations

from traincheck.diagnoses.diagnosis import Diagnosis, Match
from traincheck.vocab.properties import MOVES

DIAGNOSIS = Diagnosis(
    slug="model-not-updated",
    title="Model parameters are not updated",
    problem="These parameters of the model (or their copies in the optimizer) got a gradient, but the step did "
    "not change them. Either no optimizer holds them, or the optimizer skips them. An optimizer may "
    "also update master copies that are not written back to the model.",
    advice=(
        "Compare the tensors in optimizer.param_groups with model.parameters(): are they the same objects?",
        "If the optimizer holds master copies, check the code that writes them back. Does it reach "
        "every group, and the parameters that the model has now?",
    ),
    explains=(Match(verb=MOVES),),
    priority=4,
    priority_reason="Missing or stale gradients explain it, so they come first.",
    example="""\
masters = [p.detach().float() for p in model.parameters()]
optimizer = torch.optim.AdamW(masters)  # nothing writes the masters back to the model
""",
    former_titles=("Parameters of the model are not updated",),
)
