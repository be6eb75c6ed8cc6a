"""The diagnosis that ranks meet in a collective for different purposes."""

from __future__ import annotations

from traincheck.diagnoses.diagnosis import Diagnosis, Match
from traincheck.relations.api_arg.rank_calls import SAME_PURPOSE

DIAGNOSIS = Diagnosis(
    slug="collectives-for-different-purposes",
    title="Ranks meet in a collective for different purposes",
    problem="All ranks make the same number of collective calls, but one rank skipped one or made another. The "
    "collective combines values that belong to different groups or purposes. Sizes match, so nothing "
    "hangs.",
    advice=(
        "Look for a collective, such as all_reduce, in a loop or behind a condition that differs "
        "between ranks (a stage without experts, an empty parameter group).",
    ),
    explains=(Match(verb=SAME_PURPOSE.verb, object=SAME_PURPOSE.object),),
    priority=1,
    priority_reason="All values that it combines are wrong.",
    example="""\
for group in groups:
    if group.parameters:  # empty on some ranks
        dist.all_reduce(group.norm)
""",
    former_titles=("Ranks meet in a collective for different reasons",),
)
