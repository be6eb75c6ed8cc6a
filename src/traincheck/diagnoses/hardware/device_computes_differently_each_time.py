"""The diagnosis that a device computes another result each time."""

from __future__ import annotations

from traincheck.diagnoses.diagnosis import Diagnosis, Match
from traincheck.relations.consistent.replayed_steps import WAYS
from traincheck.vocab.properties import REPEATS
from traincheck.vocab.replayed_computations import PERSISTENT

DIAGNOSIS = Diagnosis(
    slug="device-computes-differently-each-time",
    title="A device computes another result each time",
    problem="TrainCheck executed this computation several times from the same state, and each result differs, "
    "while other steps repeat exactly. The device is defective, and its result is in the weights.",
    advice=(
        "Stop the run, and resume from a checkpoint before this step on another device.",
        "Screen the device against fingerprints from a healthy one: traincheck sdc screen.",
        "Look for errors that the machine logged (ECC, Xid, machine checks). Remove the device if they recur.",
    ),
    explains=(Match(verb=REPEATS, note=f"*{WAYS[PERSISTENT]}"),),
    priority=1,
    priority_reason="Every later value depends on the wrong result.",
    example="""\
in step 40, the forward of Net gives something else in each of several executions
""",
    former_titles=("A device computes something else each time",),
)
