"""Build the table of what was verified, the same in every report format, and the result as one line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from traincheck.reporting import phrases
from traincheck.vocab.finding import Report
from traincheck.vocab.invariant import ERROR
from traincheck.vocab.replayed_computations import ELSEWHERE, PARTS
from traincheck.vocab.verification import EXPERIMENTS, NOT_TRUE_HERE, UNDECIDED, VerifiedComputation

REPLAYS: Mapping[str, str] = {**{part: f"{part} again" for part in PARTS}, ELSEWHERE: "again on another rank"}
"""The names of replays in the table; an experiment has its own name there."""

HEAD = ("experiment", "subject", "verified", "verdict")


class VerificationRow(NamedTuple):
    """The cells of a row. `kind` is the verdict in one word, `verdict` adds numbers and reasons."""

    experiment: str
    subject: str
    times: str
    verdict: str
    kind: str


class Conclusion(NamedTuple):
    """The result of `traincheck verify`, as one line."""

    text: str
    is_verified: bool


def verification_rows(computations: Sequence[VerifiedComputation]) -> tuple[VerificationRow, ...]:
    """Return the rows of the table."""
    return tuple(
        VerificationRow(_experiment(row), row.subject, f"{row.times:,}", row.verdict + _remark(row), row.verdict)
        for row in computations
    )


def without_occasion(computations: Sequence[VerifiedComputation]) -> list[str]:
    """Return the experiments that found nothing to verify."""
    seen = {row.experiment for row in computations}
    return [_words(name) for name in EXPERIMENTS if name not in seen]


def conclusion(report: Report, requested: int, failure: str = "") -> Conclusion:
    """Return the result of a run in which `requested` steps were to be verified.

    `failure` is a clause about the end of a program that failed.
    """
    rows, steps = report.verification, min(report.counts.steps, requested)
    seen = f"in {phrases.number(steps, 'step')}"
    wrong = [finding for finding in report.findings if finding.severity == ERROR]
    if wrong:
        more = f", and {phrases.number(len(wrong) - 1, 'more error')}" if len(wrong) > 1 else ""
        return Conclusion(f"wrong: {wrong[0].title}, first at step {wrong[0].step}{more}", False)
    if failure:
        after = f"after {phrases.number(steps, 'step')}"
        return Conclusion(f"not verified: {failure} {after}; nothing wrong was found until then", False)
    if report.untrained or not steps:
        return Conclusion(f"not verified: {report.untrained or 'no training step was seen'}", False)
    if not rows:
        return Conclusion(f"not verified: no experiment had an occasion {seen}", False)
    undecided = sum(row.verdict == UNDECIDED for row in rows)
    if undecided == len(rows):
        return Conclusion(f"not verified: no experiment could decide {seen}", False)
    text = f"verified: nothing wrong found {seen}"
    if steps < requested:
        text += f"; the program ended before step {requested}"
    if undecided:
        text += f"; {undecided} of {phrases.number(len(rows), 'computation')} could not be decided"
    return Conclusion(text, True)


def _experiment(row: VerifiedComputation) -> str:
    return REPLAYS.get(row.experiment) or _words(row.experiment)


def _words(name: str) -> str:
    return name.replace("_", " ")


def _remark(row: VerifiedComputation) -> str:
    how_often = f" {row.disagreed} of {row.times} times" if row.disagreed else ""
    if row.verdict == NOT_TRUE_HERE:
        how_often += f": {EXPERIMENTS[row.experiment].otherwise}"
    reasons = "; ".join(row.reasons)
    if row.verdict == UNDECIDED:
        return f": {reasons}"
    return f"{how_often} (undecided in part: {reasons})" if reasons else how_often
