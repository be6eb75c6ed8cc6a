"""The diagnosis that gradients of replicas differ between ranks."""

from __future__ import annotations

from traincheck.diagnoses.diagnosis import Diagnosis, Match
from traincheck.relations.consistent.ranks.replicas import USED_GRAD
from traincheck.vocab.builtin_rules import AFTER_AVERAGING, ONE_MODEL
from traincheck.vocab.properties import SAME_ON_RANKS

DIAGNOSIS = Diagnosis(
    slug="gradients-differ-between-ranks",
    title="Gradients of replicas differ between ranks",
    problem="The parameter is the same on all ranks, but the update uses different gradients. Either the "
    "gradients were not reduced over the ranks, or one rank changed the reduced result. From this "
    "update on, the replicas drift apart.",
    advice=(
        "Check that you call the model through its distributed wrapper, and not the module inside. If "
        "its parameters were replaced or moved after wrapping, its hooks are lost.",
        "If you use no_sync for gradient accumulation, leave it for the last backward before each update.",
        "If you average gradients by yourself, check that the loop covers all parameters (biases, normalization "
        "layers, every part of the model), and that clipping comes after it.",
        "With tensor parallelism, reduce the gradient of the input of a layer that is split over its outputs.",
        "In a pipeline, add the gradients of a matrix that two stages share, such as a tied embedding.",
        "Check the collective that reduces these gradients, and how each rank uses its result.",
    ),
    explains=(
        Match(verb=SAME_ON_RANKS, object=USED_GRAD),
        Match(verb=SAME_ON_RANKS, object=ONE_MODEL.object),
        Match(verb=AFTER_AVERAGING.verb, object=AFTER_AVERAGING.object, detail=AFTER_AVERAGING.detail),
    ),
    priority=2,
    priority_reason="Different data or settings on the ranks can explain it.",
    example="""\
model = DistributedDataParallel(net)
loss = model.module(batch).mean()  # bypasses the wrapper, so nothing reduces
""",
)
