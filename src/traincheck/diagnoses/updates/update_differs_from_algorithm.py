"""The diagnosis that an optimizer did not write what its algorithm computes."""

from __future__ import annotations

from traincheck.diagnoses.diagnosis import Diagnosis, Match
from traincheck.vocab.properties import IS_VERIFIED
from traincheck.vocab.verification import ALGORITHM, KIND

DIAGNOSIS = Diagnosis(
    slug="update-differs-from-algorithm",
    title="The optimizer did not write what its algorithm computes",
    problem="TrainCheck computed the update a second time from the documented formula, the old values, the gradients "
    "and the optimizer's state. The optimizer wrote other numbers, by more than rounding explains. The loss may "
    "still fall, because other elements are trained.",
    advice=(
        "Run the step with another implementation of the same optimizer (foreach=True, fused=False) and compare.",
        "Update torch, or the library of the optimizer: fused kernels for 16-bit parameters had such errors.",
        "Look for code that replaces or patches the step of the optimizer.",
    ),
    explains=(Match(verb=IS_VERIFIED, api=f"{KIND}.{ALGORITHM.name}"),),
    priority=1,
    priority_reason="Every later value depends on the wrong parameters.",
    example="""\
model = Net().bfloat16()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=True)  # in torch 2.13 on a CPU
""",
)
