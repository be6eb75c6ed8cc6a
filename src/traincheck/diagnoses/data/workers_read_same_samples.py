"""The diagnosis that the workers of a data loader read the same samples."""

from __future__ import annotations

from traincheck.diagnoses.diagnosis import Diagnosis, Match
from traincheck.vocab.builtin_rules import DIVIDES_DATA

DIAGNOSIS = Diagnosis(
    slug="workers-read-same-samples",
    title="The workers of a data loader read the same samples",
    problem="Each worker process has a copy of the iterable data set, and reads all of it. So each sample comes as "
    "often in a pass as there are workers.",
    advice=(
        "Divide the data in __iter__ by torch.utils.data.get_worker_info(), its id and num_workers.",
        "If the data set draws random numbers, give each worker a seed of its own.",
    ),
    explains=(Match(verb=DIVIDES_DATA.verb, object=DIVIDES_DATA.object),),
    priority=9,
    priority_reason="It changes the data; defects in the training loop matter more.",
    example="""\
class Lines(IterableDataset):
    def __iter__(self):
        yield from self.lines  # should be every num_workers-th line, from the id of the worker on
""",
)
