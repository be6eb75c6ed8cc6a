"""The diagnosis that a computation was wrong once."""

from __future__ import annotations

from traincheck.diagnoses.diagnosis import Diagnosis, Match
from traincheck.relations.consistent.replayed_steps import WAYS
from traincheck.vocab.properties import REPEATS
from traincheck.vocab.replayed_computations import TRANSIENT

DIAGNOSIS = Diagnosis(
    slug="computation-wrong-once",
    title="A computation was wrong once",
    problem="TrainCheck executed this computation again from the same state and got other bits, while other "
    "steps repeat exactly. The device was wrong for a moment, and its result is in the weights.",
    advice=(
        "Resume from a checkpoint before this step if you need to trust the run.",
        "Screen the device against fingerprints from a healthy one: traincheck sdc screen.",
        "Look for errors that the machine logged (ECC, Xid, machine checks). Remove the device if they recur.",
    ),
    explains=(Match(verb=REPEATS, note=f"*{WAYS[TRANSIENT]}"),),
    priority=1,
    priority_reason="Every later value depends on the wrong result.",
    example="""\
in step 40, grad of layer1 was not what it is when the backward of Net is executed again from the same state
""",
)
