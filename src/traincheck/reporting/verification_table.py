"""Show what was verified: one row for each experiment and subject, and the result as one line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from rich.table import Table
from rich.text import Text

from traincheck.reporting import phrases
from traincheck.vocab.experiments import EXPERIMENTS
from traincheck.vocab.finding import Report
from traincheck.vocab.invariant import ERROR
from traincheck.vocab.replayed_computations import ELSEWHERE, PARTS
from traincheck.vocab.verification import UNDECIDED, WRONG, VerifiedComputation

REPLAYS: Mapping[str, str] = {**{part: f"{part} again" for part in PARTS}, ELSEWHERE: "again on another rank"}
"""The names of replays in the table; an experiment has its own name there."""

ROWS = 40
"""Maximum rows of the table on a terminal."""

_STYLES = {WRONG: "bold red", UNDECIDED: "yellow"}


class Conclusion(NamedTuple):
    """The result of `traincheck verify`, as one line."""

    text: str
    is_verified: bool


def verification_table(rows: Sequence[VerifiedComputation]) -> Table:
    """Return the table for a terminal."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("experiment", "subject"):
        table.add_column(name, no_wrap=name == "experiment", overflow="fold")
    table.add_column("verified", justify="right", no_wrap=True)
    table.add_column("verdict", overflow="fold")
    for row in rows[:ROWS]:
        verdict = Text(row.verdict, _STYLES.get(row.verdict, "")).append(phrases.plain(_remark(row)), "")
        table.add_row(_experiment(row), Text(phrases.plain(row.subject)), f"{row.times:,}", verdict)
    if len(rows) > ROWS:
        table.add_row(f"and {len(rows) - ROWS:,} more rows in the reports")
    return table


def table_text(rows: Sequence[VerifiedComputation]) -> str:
    """Return the table as plain text, for messages."""
    lines = [f"{_experiment(row)}  {row.subject}  {row.times:,}  {row.verdict}{_remark(row)}" for row in rows]
    return "\n".join(phrases.plain(line) for line in lines)


def without_occasion(rows: Sequence[VerifiedComputation]) -> list[str]:
    """Return the experiments that found nothing to verify."""
    seen = {row.experiment for row in rows}
    return [name for name in EXPERIMENTS if name not in seen]


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
    return phrases.plain(REPLAYS.get(row.experiment, row.experiment.replace("_", " ")))


def _remark(row: VerifiedComputation) -> str:
    how_often = f" {row.disagreed} of {row.times} times" if row.disagreed else ""
    return how_often + (f": {'; '.join(row.reasons)}" if row.verdict == UNDECIDED else _in_part(row))


def _in_part(row: VerifiedComputation) -> str:
    return f" (in part undecided: {'; '.join(row.reasons)})" if row.reasons else ""
