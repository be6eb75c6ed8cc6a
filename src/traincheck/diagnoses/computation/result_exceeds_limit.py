"""The diagnosis that a result is longer or shorter than requested."""

from __future__ import annotations

from traincheck.diagnoses.diagnosis import Diagnosis, Match
from traincheck.relations.api_output.call_kinds import WITHIN_BOUND
from traincheck.vocab.properties import RETURNS_LENGTH, RETURNS_MORE, RETURNS_WIDTH

DIAGNOSIS = Diagnosis(
    slug="result-exceeds-limit",
    title="A result is longer or shorter than requested",
    problem="The length of the result is beyond the bound that you passed to the call.",
    advice=("Check how the limit is computed, and what is cut off before and after that.",),
    explains=(
        Match(verb=(RETURNS_LENGTH, RETURNS_WIDTH, RETURNS_MORE)),
        Match(verb=WITHIN_BOUND.verb, object=WITHIN_BOUND.object),
    ),
    priority=11,
    priority_reason="It concerns a single result; defects of training matter more.",
    example="""\
tokens = generate(prompt, max_new_tokens=12)  # returns 44 new tokens
""",
    former_titles=("A result is longer or shorter than was asked for",),
)
