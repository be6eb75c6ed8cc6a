"""The diagnosis that buffers of replicas differ between ranks."""

from __future__ import annotations

from traincheck.diagnoses.diagnosis import Diagnosis, Match
from traincheck.relations.consistent.ranks.buffers import SAME

DIAGNOSIS = Diagnosis(
    slug="buffers-differ-between-ranks",
    title="Buffers of replicas differ between ranks",
    problem="A buffer, such as the running statistics of batch norm, is not the same on all ranks when the "
    "model is used. Each rank evaluates with its own buffer, and only the rank that saves keeps its "
    "values.",
    advice=(
        "Check that you call the model through its distributed wrapper, and that the wrapper broadcasts"
        " buffers. Use SyncBatchNorm for statistics over all ranks.",
    ),
    explains=(Match(verb=SAME.verb, object=SAME.object),),
    priority=2,
    priority_reason="Different data on the ranks can explain it.",
    example="""\
if step % 100 == 0:  # in all other steps, each rank has its own statistics
    for buffer in net.buffers():
        dist.broadcast(buffer, src=0)
""",
)
