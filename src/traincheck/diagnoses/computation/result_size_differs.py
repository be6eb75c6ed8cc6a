"""The diagnosis that a result has another size than its input."""

from __future__ import annotations

from traincheck.diagnoses.diagnosis import Diagnosis, Match
from traincheck.vocab.properties import RETURNS_SIZE

DIAGNOSIS = Diagnosis(
    slug="result-size-differs",
    title="A result has another size than its input",
    problem="In good runs, the result has a size of one of its inputs. Here, samples were lost or merged on the way.",
    advice=("Check how your code batches and splits the samples.",),
    explains=(Match(verb=RETURNS_SIZE),),
    priority=11,
    priority_reason="Wrong data or a wrong mode explain it.",
    example="""\
scores = model(batch)[mask]  # fewer rows than labels
""",
    former_titles=("A result has another size than what it was made from",),
)
