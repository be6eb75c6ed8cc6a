"""The diagnosis that data loader workers draw the same random numbers."""

from __future__ import annotations

from traincheck.diagnoses.diagnosis import Diagnosis, Match
from traincheck.vocab.properties import WORKER_STATES

DIAGNOSIS = Diagnosis(
    slug="workers-share-random-state",
    title="Data loader workers draw the same random numbers",
    problem="Two workers started on their batches with the same random state, so they augment their samples in "
    "the same way.",
    advice=(
        "Seed each worker differently (worker_init_fn), and create random generators in the worker, not"
        " in the dataset.",
    ),
    explains=(Match(verb=WORKER_STATES),),
    priority=9,
    priority_reason="It changes the data; defects in the training loop matter more.",
    example="""\
class Crops(Dataset):
    rng = np.random.default_rng(0)  # every worker gets a copy
""",
    former_titles=("Workers of a data loader draw the same random numbers",),
)
