"""The result of a check: outcomes of all processes, told as one report with a verdict for each invariant."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from traincheck.checking.engine import Outcome
from traincheck.checking.findings import group
from traincheck.checking.rank_engine import Compared
from traincheck.checking.rank_states import partings, with_comparisons
from traincheck.invariants import builtin_rules
from traincheck.invariants.book import Book
from traincheck.vocab.events import MISSING
from traincheck.vocab.finding import (
    NOT_OBSERVED,
    NOT_TRIGGERED,
    PASSED,
    VIOLATED,
    Cost,
    Counts,
    Finding,
    RankState,
    Report,
    Violation,
)
from traincheck.vocab.invariant import ERROR, NOTICE, Invariant


@dataclass(frozen=True)
class Checked:
    """A report, the verdict on each invariant, and the outcomes that both come from."""

    report: Report
    verdicts: tuple[tuple[Invariant, str], ...]
    outcomes: tuple[Outcome, ...]


def conclude(
    book: Book,
    rules: Sequence[Invariant],
    outcomes: Sequence[Outcome],
    *,
    unobserved: Mapping[str, str],
    not_observed: Iterable[str] = (),
    dropped: int = 0,
    run: Mapping[str, object] | None = None,
    compared: Sequence[Compared] = (),
    ranks: Sequence[RankState] = (),
    cost: Cost | None = None,
) -> Checked:
    """Put outcomes together: those of processes, and what was `compared` of the ranks of jobs.

    `rules` are those of `book` that were deployed on this program; `unobserved` maps the id of a rule that could not be
    judged to the reason. `ranks` tells how each rank of a job fared by itself, `cost` what watching took.
    """
    outcomes = [*outcomes, *(one.outcome for one in compared)]
    findings = findings_of(outcomes)
    asked = {rule.id for rule in rules if not builtin_rules.is_always_deployed(rule)}
    judged = [(rule, _verdict(rule, outcomes, unobserved)) for rule in rules]
    verdicts = tuple((rule, verdict) for rule, verdict in judged if verdict == VIOLATED or rule.id in asked)
    told = [reason for one in compared for reason in one.not_compared]
    told += [str(absence) for outcome in outcomes for absence in outcome.absences if absence.why != MISSING]
    told += [reason for outcome in outcomes for reason in outcome.resting.values()]
    reasons = sorted({*not_observed, *told, *(why for name, why in unobserved.items() if name in asked)})
    counts = _counts(book, verdicts, findings, outcomes, dropped)
    if run and run.get("untrained"):
        counts = replace(counts, steps=0)
        reasons += [str(run["untrained"])] if findings else []  # else it is the headline
    report = Report(
        findings,
        counts,
        tuple(reasons),
        dict(run or {}),
        ranks=with_comparisons(ranks, compared),
        partings=partings(compared),
        cost=cost,
    )
    return Checked(report, verdicts, tuple(outcomes))


def findings_of(outcomes: Sequence[Outcome]) -> tuple[Finding, ...]:
    """What several outcomes show together, the leading finding first."""
    violations = [violation for outcome in outcomes for violation in outcome.violations]
    violations.sort(key=_when)
    failed = {
        (violation.invariant.id, violation.process): outcome.failed[violation.invariant.id]
        for outcome in outcomes
        for violation in outcome.violations
        if violation.invariant.id in outcome.failed
    }
    return group(violations, _ranks_judged(outcomes), failed)


def _ranks_judged(outcomes: Iterable[Outcome]) -> dict[str, frozenset[int]]:
    """By the id of a rule: the ranks on which it was judged at all."""
    found: dict[str, set[int]] = {}
    for outcome in outcomes:
        for name, tried in outcome.tried.items():
            if tried.triggered:
                found.setdefault(name, set()).add(outcome.rank)
    return {name: frozenset(ranks) for name, ranks in found.items()}


def _when(violation: Violation) -> tuple[object, ...]:
    return (violation.window, violation.rank, violation.process, violation.seq, violation.invariant.id)


def _verdict(rule: Invariant, outcomes: Iterable[Outcome], unobserved: Mapping[str, str]) -> str:
    told = [(outcome.tried[rule.id], rule.id in outcome.resting) for outcome in outcomes if rule.id in outcome.tried]
    if any(each.failed for each, _ in told):
        return VIOLATED
    if any(each.triggered and not rests for each, rests in told):
        return PASSED
    return NOT_OBSERVED if rule.id in unobserved or any(rests for _, rests in told) else NOT_TRIGGERED


def _counts(
    book: Book,
    verdicts: Sequence[tuple[Invariant, str]],
    findings: Sequence[Finding],
    outcomes: Sequence[Outcome],
    dropped: int,
) -> Counts:
    told = [verdict for _, verdict in verdicts]
    return Counts(
        invariants=len(verdicts),
        passed=told.count(PASSED),
        violated=told.count(VIOLATED),
        not_triggered=told.count(NOT_TRIGGERED),
        not_observed=told.count(NOT_OBSERVED),
        muted=len(book.invariants) - len(book.active),
        errors=sum(finding.severity == ERROR for finding in findings),
        notices=sum(finding.severity == NOTICE for finding in findings),
        steps=max((outcome.steps for outcome in outcomes), default=0),
        windows=sum(outcome.windows for outcome in outcomes),
        windows_dropped=dropped,
        processes=sum(outcome.windows > 0 for outcome in outcomes),
    )
