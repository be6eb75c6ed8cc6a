"""The diagnosis that layers of a model start with the same random numbers."""

from __future__ import annotations

from traincheck.diagnoses.diagnosis import Diagnosis, Match
from traincheck.vocab.builtin_rules import STARTS_DIFFER

DIAGNOSIS = Diagnosis(
    slug="layers-start-alike",
    title="Layers of a model start with the same random numbers",
    problem="The constructor of a module, or a function that initializes weights, sets the seed each time. So several "
    "layers have the same weights, and learn the same.",
    advice=("Set the seed once, at the start of the program, and never in a module or an initialization function.",),
    explains=(Match(verb=STARTS_DIFFER.verb, object=STARTS_DIFFER.object),),
    priority=5,
    priority_reason="It affects the start of the training, and errors of the loop matter more.",
    example="""\
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)  # each block gets the same weights
        self.layer = nn.Linear(64, 64)
""",
)
