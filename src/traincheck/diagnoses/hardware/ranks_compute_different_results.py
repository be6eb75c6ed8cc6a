"""The diagnosis that two ranks compute different results from the same inputs."""

from __future__ import annotations

from traincheck.diagnoses.diagnosis import Diagnosis, Match
from traincheck.relations.consistent.replayed_steps import ELSEWHERE_ENDS, EXACT

DIAGNOSIS = Diagnosis(
    slug="ranks-compute-different-results",
    title="Two ranks compute different results from the same inputs",
    problem="Another rank executed the computation of this rank from the same parameters, arguments and random "
    "state. It got other bits, each time: one device always computes wrongly in the same way, so it "
    "cannot notice by itself. (Different software or devices also explain this.)",
    advice=(
        "Check that these ranks have the same devices and the same release of torch.",
        "Screen the device against fingerprints from a healthy one: traincheck sdc screen.",
        "Look for errors that the machine logged (ECC, Xid, machine checks). Remove the device if they recur.",
    ),
    explains=(Match(verb=EXACT.verb, object=EXACT.object, note=f"*{ELSEWHERE_ENDS}"),),
    priority=1,
    priority_reason="Every later value depends on the wrong result.",
    example="""\
rank 1 computed something else than the others in the backward of Net, twice
""",
    former_titles=("Two ranks compute different things from the same",),
)
