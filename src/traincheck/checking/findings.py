"""Findings: violations are echoes of one another; group them under one cause, and put the likeliest first.

Note [Grouping]
One defect breaks many rules, most of them in the step in which it first shows, some a step later (what a cycle lacks
shows at its end). So violations that begin within `ECHO_STEPS` of the leading one's first step are one finding,
unless their cause stands alone (cause.py). The leading violation is that of the highest severity, then the earliest,
then the one whose cause is nearest to the root.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from types import MappingProxyType

from traincheck.checking.cause import Cause
from traincheck.checking.causes import cause_of, expected, observed
from traincheck.vocab.finding import Finding, Violation
from traincheck.vocab.invariant import ERROR, NOTICE
from traincheck.vocab.ranks import named_ranks

ECHO_STEPS = 1

PLACE = ".param_groups["
"""In the name of a parameter that no module owns: its place in an optimizer."""


@dataclass
class _Strand:
    """All violations of one invariant in one process: when it began and how it went on."""

    first: Violation
    last_step: int
    times: int
    variables: tuple[str, ...]
    cause: Cause

    @property
    def place(self) -> tuple[object, ...]:
        """The order in which strands lead."""
        rule = self.first.invariant
        return (
            rule.severity != ERROR,
            self.first.step,
            self.cause.rank,
            self.first.rank,
            rule.precondition.size,
            -rule.support.runs,
            -rule.confidence,
            rule.id,
        )


def group(
    violations: Iterable[Violation],
    judged: Mapping[str, frozenset[int]] = MappingProxyType({}),
    failed: Mapping[tuple[str, int], tuple[int, int]] = MappingProxyType({}),
) -> tuple[Finding, ...]:
    """The findings behind `violations`, the leading one first; `judged` tells on which ranks a rule (its id) was.

    `failed` tells by the id of a rule and the process in how many windows it failed and in which step last, where not
    all violations are there.
    """
    strands = _strands(violations)
    for strand in strands:
        times, last = failed.get((strand.first.invariant.id, strand.first.process), (0, 0))
        strand.times, strand.last_step = max(times, strand.times), max(last, strand.last_step)
    pending = sorted(strands, key=lambda strand: strand.place)
    findings = []
    while pending:
        leader = pending[0]
        echoes = [strand for strand in pending if strand is leader or _echoes(strand, leader)]
        pending = [strand for strand in pending if strand not in echoes]
        findings.append(_finding(leader, echoes, judged.get(leader.first.invariant.id, frozenset())))
    return tuple(findings)


def _strands(violations: Iterable[Violation]) -> list[_Strand]:
    strands: dict[tuple[str, int], _Strand] = {}
    for violation in violations:
        key = (violation.invariant.id, violation.process)
        strand = strands.get(key)
        if strand is None:
            strands[key] = _Strand(violation, violation.step, 1, violation.variables, cause_of(violation))
        else:
            strand.last_step = max(strand.last_step, violation.step)
            strand.times += 1
    return list(strands.values())


def _echoes(strand: _Strand, leader: _Strand) -> bool:
    begins = strand.first.step - leader.first.step
    same_cause = strand.cause.rank == leader.cause.rank and strand.cause.title == leader.cause.title
    if same_cause and begins >= 0:
        return True
    if strand.cause.stands_alone or leader.cause.stands_alone:
        return False
    if strand.first.invariant.severity == NOTICE and begins >= 0:
        return begins <= ECHO_STEPS
    return abs(begins) <= ECHO_STEPS


def _where(failed: Set[int], held: Set[int]) -> tuple[str, ...]:
    """On which ranks a rule failed, where it held on others."""
    return (f"so on {named_ranks(failed)}, not on {named_ranks(held)}",) if held else ()


def _told_by_others(strands: Iterable[_Strand]) -> tuple[str, ...]:
    """The variables of the first that has any. A name in a module says more than a place in an optimizer."""
    told = sorted((strand.variables for strand in strands if strand.variables), key=_are_places)
    return told[0] if told else ()


def _are_places(variables: Iterable[str]) -> bool:
    return all(PLACE in name for name in variables)


def _finding(leader: _Strand, strands: Sequence[_Strand], judged: frozenset[int]) -> Finding:
    first = leader.first
    failed = {strand.first.rank for strand in strands if strand.first.invariant == first.invariant}
    variables = leader.variables or _told_by_others(strands)
    site = first.site or next((strand.first.site for strand in strands if strand.first.site), None)
    compared = first.apart.compared
    return Finding(
        severity=first.invariant.severity,
        step=first.step,
        rank=first.rank,
        title=leader.cause.title,
        cause=leader.cause.cause,
        site=site,
        variables=variables,
        expected=expected(first.invariant),
        observed="; ".join((observed(first), *_where(failed, judged - failed))),
        advice=leader.cause.advice,
        invariants=tuple(strand.first.invariant.id for strand in strands),
        last_step=max(strand.last_step for strand in strands),
        times=max(strand.times for strand in strands),
        ranks=first.apart.ranks if compared else tuple(sorted(failed)),
        compared=compared,
    )
