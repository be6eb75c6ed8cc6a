"""The diagnosis that a call does not behave as in good runs."""

from __future__ import annotations

from traincheck.diagnoses.diagnosis import Diagnosis

DIAGNOSIS = Diagnosis(
    slug="differs-from-good-runs",
    title="A call does not behave as in good runs",
    problem="A rule from good runs does not hold, and no diagnosis in the catalogue explains it. The finding "
    "names the call, the rule and the values that TrainCheck observed.",
    advice=("Check the code around this call, and what changed since the good runs.",),
    explains=(),
    priority=100,
    priority_reason="Every diagnosis in the catalogue says more.",
    example="""\
Tokenizer.encode does not behave as in good runs
""",
)
