"""The diagnosis that weights of a model are neither parameters nor buffers."""

from __future__ import annotations

from traincheck.diagnoses.diagnosis import Diagnosis, Match
from traincheck.vocab.builtin_rules import REGISTERED

DIAGNOSIS = Diagnosis(
    slug="weights-not-registered",
    title="Random weights are neither parameters nor buffers",
    problem="A constructor makes a tensor of random numbers and keeps it as a plain attribute. Training computes with "
    "it between two layers. No optimizer trains it, and no state dict holds it. A model that is built again and loads "
    "the checkpoint has other numbers there.",
    advice=(
        "If training should change it, use nn.Parameter, before the optimizer is built.",
        "If it should stay as it is, use register_buffer, which also moves it with the model.",
    ),
    explains=(Match(verb=REGISTERED.verb, object=REGISTERED.object, detail=REGISTERED.detail),),
    priority=2,
    priority_reason="A part of the model does not learn, and a checkpoint does not restore it.",
    stands_alone=True,
    example="""\
class Positions(nn.Module):
    def __init__(self, length, width):
        super().__init__()
        self.embedding = 0.02 * torch.randn(length, width)  # should be nn.Parameter(...)

    def forward(self, x):
        return x + self.embedding[: x.size(1)]
""",
)
