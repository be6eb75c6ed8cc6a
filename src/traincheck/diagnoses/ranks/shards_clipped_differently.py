"""The diagnosis that ranks clip a gradient that is divided over them by a wrong norm."""

from __future__ import annotations

from traincheck.diagnoses.diagnosis import Diagnosis, Match
from traincheck.vocab.properties import SCALES_BY_NORM

DIAGNOSIS = Diagnosis(
    slug="shards-clipped-differently",
    title="Ranks clip a divided gradient by a wrong norm",
    problem="The ranks hold parts of one gradient, and clipping scales these parts by the norm of the whole gradient. "
    "Here the factor does not follow from this norm. If each rank uses the norm of its own part, the update has "
    "another direction. If the norm counts a parameter once for each rank, the update is too small.",
    advice=(
        "Compute the norm over all ranks: sum the squares of the norms over the ranks that hold the parts.",
        "With DTensor, call full_tensor() on the norm, or use torch.nn.utils.clip_grad_norm_.",
        "Count a parameter that several ranks hold only once.",
    ),
    explains=(Match(verb=SCALES_BY_NORM),),
    priority=9,
    priority_reason="Gradients that differ between replicas can explain it.",
    example="""\
norm = torch.stack([p.grad.to_local().norm() for p in model.parameters()]).norm()  # of this rank alone
nn.utils.clip_grads_with_norm_(model.parameters(), 1.0, norm)
""",
)
