"""The diagnosis that ranks train on the same batch."""

from __future__ import annotations

from traincheck.diagnoses.diagnosis import Diagnosis, Match
from traincheck.vocab.properties import DIFFERS_ON_RANKS

DIAGNOSIS = Diagnosis(
    slug="ranks-train-on-same-batch",
    title="Ranks train on the same batch",
    problem="Each rank holds a copy of the whole model, and all of them get the same batch in the same step. "
    "The samples are not divided among the ranks, so one rank would do the same work.",
    advice=(
        "Give the data loader a DistributedSampler, or each rank its own shard or seed of the data.",
        "Check that you call set_epoch, and that rank and world size belong to this job.",
    ),
    explains=(Match(verb=DIFFERS_ON_RANKS),),
    priority=1,
    priority_reason="It concerns the data only, so it does not follow from a defect of the model.",
    example="""\
loader = DataLoader(dataset, shuffle=True)  # sampler=DistributedSampler(dataset) is missing
""",
    stands_alone=True,
)
