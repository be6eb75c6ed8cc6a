"""Judges the findings that a book makes in a buggy run only: do they come in time and name the cause?"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.detection.cases import Case
from traincheck.invariants.book import Book
from traincheck.vocab.finding import Finding, Report
from traincheck.vocab.invariant import ERROR, Invariant

WITHIN = 1
"""Steps between the first bad step and the first finding at most (silent-errors, section D)."""


@dataclass(frozen=True)
class Verdict:
    """The verdict on a case under one book.

    An error before the first step (0) shows at first use, so a finding in step 1 is in the same step.
    `detected`: an error finding that the clean run does not have, first reported within one step of the first bad step.
    `late` is the number of steps between the two, for the error finding nearest to it (None without one). `diagnosed`:
    the leading finding has one of the words of each group of the case's `names`; `missing` are the groups it lacks.
    """

    detected: bool
    same_step: bool
    diagnosed: bool
    severity: str
    late: int | None
    missing: tuple[tuple[str, ...], ...]
    leading: dict[str, Any] | None
    errors: int
    notices: int
    rules: int
    failed: tuple[str, ...]


def judge(case: Case, buggy: Report, book: Book, already_failing: Set[str]) -> Verdict:
    """Judge the report on the buggy run of a case under `book`.

    `already_failing` are the ids of rules that the clean run violates under the same book.
    """
    findings = buggy.findings
    new = [finding for finding in findings if not set(finding.invariants) <= already_failing]
    errors = [finding for finding in new if finding.severity == ERROR]
    late = min((finding.step - case.first_bad_step for finding in errors), key=abs, default=None)
    leading = findings[0] if findings else None
    missing = missing_groups(case.names, words_of(leading) if leading else "")
    failed = violated(buggy) - already_failing
    return Verdict(
        detected=late is not None and abs(late) <= WITHIN,
        same_step=late == 0 or (case.first_bad_step, late) == (0, 1),
        diagnosed=leading is not None and leading in new and not missing,
        severity=leading.severity if leading else "",
        late=late,
        missing=missing,
        leading=asdict(leading) if leading else None,
        errors=len(errors),
        notices=len(new) - len(errors),
        rules=buggy.counts.invariants,
        failed=tuple(rule_text(rule) for rule in book.invariants if rule.id in failed),
    )


def violated(report: Report) -> frozenset[str]:
    """Return the ids of the violated rules of a report; each belongs to a finding."""
    return frozenset(rule for finding in report.findings for rule in finding.invariants)


def missing_groups(groups: Sequence[tuple[str, ...]], text_of_finding: str) -> tuple[tuple[str, ...], ...]:
    """The groups of words of which `text_of_finding` contains none."""
    text = text_of_finding.lower()
    return tuple(group for group in groups if not any(word.lower() in text for word in group))


def words_of(finding: Finding) -> str:
    """Return the text of a finding about the error, without its advice, which lists possible causes."""
    parts: Sequence[str] = (
        finding.diagnosis,
        finding.title,
        finding.cause,
        str(finding.site or ""),
        *finding.variables,
        finding.expected,
        finding.observed,
    )
    return "\n".join(parts)


def things_of(finding: Finding) -> str:
    """Return the text of a finding about the location: parameters, lines, calls, without title and cause."""
    return "\n".join((*finding.variables, str(finding.site or ""), finding.expected, finding.observed))


def rule_text(rule: Invariant) -> str:
    return f"{rule.severity} {rule.confidence:.2f} {rule.relation}: {rule.sentence} ({rule.precondition})"
