"""The diagnosis that the same weights are initialized several times."""

from __future__ import annotations

from traincheck.diagnoses.diagnosis import Diagnosis, Match
from traincheck.vocab.properties import FILLS_MEMORY

DIAGNOSIS = Diagnosis(
    slug="weights-initialized-repeatedly",
    title="The same weights are initialized several times",
    problem="One line of the program initializes most of its tensors several times in one go: the "
    "initialization visits the same weights once for every module around them.",
    advice=("Initialize only the own parameters of each module, without those of its children.",),
    explains=(Match(verb=FILLS_MEMORY),),
    priority=9,
    priority_reason="It costs time and changes the start, not the training loop.",
    example="""\
def init(module):
    for weight in module.parameters():  # recurse=False is missing
        torch.nn.init.normal_(weight)

model.apply(init)
""",
    former_titles=("Memory is initialised again and again",),
)
