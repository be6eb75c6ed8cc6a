"""Groups violations into findings, and puts the likeliest cause first.

Note [Grouping]
One defect breaks many rules, most of them in the step in which it first shows, some a step later (a rule about a cycle
fails at its end). So violations that begin within `ECHO_STEPS` of the first step of the leading violation join its
finding. A diagnosis that stands alone joins, and is joined by, only violations about the same variables and those that
only say that a run differs from good runs. The leading violation has the highest severity, then the earliest step,
then the diagnosis with the lowest priority number. A diagnosis that only says that a run differs from good runs leaves
the lead to a more specific one that begins within `ECHO_STEPS`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from types import MappingProxyType

from traincheck.diagnoses.catalogue import diagnose
from traincheck.diagnoses.diagnosis import COMPARES, Diagnosis
from traincheck.relations.base import short
from traincheck.vocab.finding import Finding, Violation
from traincheck.vocab.invariant import ERROR, NOTICE, Invariant
from traincheck.vocab.properties import CHANGES, DOES_NOT_CHANGE, IS_CLEARED, PAST_TENSE, THEN, elements_of, traits_of
from traincheck.vocab.ranks import named_ranks

ECHO_STEPS = 1

MAX_OTHER_SETS = 3
"""Rules about sets of which a finding shows what differs, after the leading one. Each shows a few lines."""

OPTIMIZER_INDEX = ".param_groups["
"""Part of the name of a parameter that no module owns: its index in an optimizer."""


@dataclass
class _RuleHistory:
    """All violations of one invariant in one process: the first one and how it went on."""

    first: Violation
    last_step: int
    times: int
    variables: tuple[str, ...]
    diagnosis: Diagnosis

    @property
    def order(self) -> tuple[object, ...]:
        """The lowest value leads."""
        rule = self.first.invariant
        return (
            rule.severity != ERROR,
            self.first.step,
            self.diagnosis.priority,
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
    """The findings behind `violations`, the leading one first.

    `judged` has the ranks on which each rule (by id) was judged. `failed` has, by the id of a rule and the process, the
    number of windows in which it failed and the last step, for runs of which not all violations are kept.
    """
    histories = _histories(violations)
    for history in histories:
        times, last = failed.get((history.first.invariant.id, history.first.process), (0, 0))
        history.times, history.last_step = max(times, history.times), max(last, history.last_step)
    pending = sorted(histories, key=lambda history: history.order)
    findings = []
    while pending:
        leader = min(filter(partial(_may_lead, pending[0]), pending), key=attrgetter("diagnosis.priority"))
        echoes = [history for history in pending if history is leader or _echoes(history, leader)]
        pending = [history for history in pending if history not in echoes]
        findings.append(_finding(leader, echoes, judged.get(leader.first.invariant.id, frozenset())))
    return tuple(findings)


def _may_lead(earliest: _RuleHistory, history: _RuleHistory) -> bool:
    """Whether `history` may lead the finding of the earliest violation: itself, or a more specific one soon after."""
    if history is earliest:
        return True
    return (
        earliest.diagnosis.priority >= COMPARES
        and not (earliest.diagnosis.stands_alone or history.diagnosis.stands_alone)
        and history.first.invariant.severity == earliest.first.invariant.severity
        and history.first.step - earliest.first.step <= ECHO_STEPS
    )


def _histories(violations: Iterable[Violation]) -> list[_RuleHistory]:
    histories: dict[tuple[str, int], _RuleHistory] = {}
    for violation in violations:
        key = (violation.invariant.id, violation.process)
        history = histories.get(key)
        if history is None:
            histories[key] = _RuleHistory(violation, violation.step, 1, violation.variables, diagnose(violation))
        else:
            history.last_step = max(history.last_step, violation.step)
            history.times += 1
    return list(histories.values())


def _echoes(history: _RuleHistory, leader: _RuleHistory) -> bool:
    delay = history.first.step - leader.first.step
    if delay >= 0 and _same_trouble(history.diagnosis, leader.diagnosis):
        return True
    alone = history.diagnosis.stands_alone or leader.diagnosis.stands_alone
    if alone and not (_only_compares(history, leader) or set(history.variables) & set(leader.variables)):
        return False
    if history.first.invariant.severity == NOTICE and delay >= 0:
        return delay <= ECHO_STEPS
    return abs(delay) <= ECHO_STEPS


def _only_compares(history: _RuleHistory, leader: _RuleHistory) -> bool:
    """Whether a violation only says that the run differs from good runs, which follows from the leading one."""
    return not history.diagnosis.stands_alone and history.diagnosis.priority >= COMPARES > leader.diagnosis.priority


def _same_trouble(diagnosis: Diagnosis, other: Diagnosis) -> bool:
    """Rules that no diagnosis explains share a slug, and are the same trouble only if they are about the same API."""
    return diagnosis.slug == other.slug and diagnosis.title == other.title


def _finding(leader: _RuleHistory, histories: Sequence[_RuleHistory], judged: frozenset[int]) -> Finding:
    first, severity = leader.first, leader.first.invariant.severity
    failed = {history.first.rank for history in histories if history.first.invariant == first.invariant}
    site = first.site or next((history.first.site for history in histories if history.first.site), None)
    compared = first.differing.compared
    return Finding(
        severity=severity,
        step=min(history.first.step for history in histories if history.first.invariant.severity == severity),
        rank=first.rank,
        title=leader.diagnosis.title,
        cause=leader.diagnosis.problem,
        site=site,
        variables=leader.variables or _variables_of_echoes(histories),
        expected=expected(first.invariant),
        observed="; ".join((observed(first), *_failing_ranks(failed, judged - failed), *_other_sets(first, histories))),
        advice=leader.diagnosis.advice,
        invariants=tuple(history.first.invariant.id for history in histories),
        last_step=max(history.last_step for history in histories),
        times=max(history.times for history in histories),
        ranks=first.differing.ranks if compared else tuple(sorted(failed)),
        compared=compared,
        diagnosis=leader.diagnosis.slug,
    )


def _other_sets(first: Violation, histories: Iterable[_RuleHistory]) -> list[str]:
    """What differs from good runs by other rules about sets. A whole run may lack what no step has to show."""
    shown, lines = set(first.evidence), []
    for violation in (history.first for history in histories):
        if violation is not first and elements_of(violation.invariant.property) is not None:
            new = [line for line in violation.evidence if line not in shown]
            shown.update(new)
            lines += [f"also {violation.invariant.subject.grain}: {'; '.join(new)}"] if new else []
    return lines[:MAX_OTHER_SETS]


def _variables_of_echoes(histories: Iterable[_RuleHistory]) -> tuple[str, ...]:
    """The variables of the first rule that has any. A name in a module says more than an index in an optimizer."""
    names = sorted((history.variables for history in histories if history.variables), key=_are_unnamed)
    return names[0] if names else ()


def _are_unnamed(variables: Iterable[str]) -> bool:
    return all(OPTIMIZER_INDEX in name for name in variables)


def _failing_ranks(failed: Set[int], held: Set[int]) -> tuple[str, ...]:
    """The ranks on which a rule failed, if it held on others."""
    return (f"on {named_ranks(failed)}, not on {named_ranks(held)}",) if held else ()


def expected(rule: Invariant) -> str:
    """The behaviour that the rule expects, and the good runs that showed it."""
    condition = f" (when {rule.precondition})" if rule.precondition.clauses else ""
    runs, steps = rule.support.runs, rule.support.steps
    learned = f"; true in {runs} good run{'s' * (runs != 1)}, {steps} steps" if runs else ""
    return f"{rule.sentence}{condition}{learned}"


def observed(violation: Violation) -> str:
    """The behaviour of this run instead, and the state of the parameters around it."""
    return "; ".join((violation.note or _opposite(violation), *violation.evidence))


def _opposite(violation: Violation) -> str:
    rule, prop = violation.invariant, violation.invariant.property
    api = f"{short(rule.subject.api)}" + (f" ({violation.receiver})" if violation.receiver else "")
    scope = f"since the last {api}" if rule.subject.grain == "cycle" else f"in {api}"
    if prop.detail in PAST_TENSE:
        attribute = prop.object.replace(".", " ").replace("_", " ")
        if rule.subject.grain in ("call", "cycle"):
            return f"{scope}, no {attribute} {PAST_TENSE[prop.detail]}"
        opposite = {CHANGES: "did not change", DOES_NOT_CHANGE: "changed", IS_CLEARED: "was not cleared"}
        if rule.subject.grain == "step":
            scope = f"by the end of the step of {violation.receiver}"
        return f"{scope}, the {attribute} {opposite.get(prop.detail, 'did not')}"
    if prop.detail.startswith(THEN):
        return f"{scope}, {short(prop.detail.removeprefix(THEN))} came before {short(prop.object)}"
    if elements_of(prop) is not None:
        return "differs from good runs"
    if traits_of(prop).expects_call:
        with_argument = f" with {prop.detail}" if prop.detail else ""
        return f"{scope}, {short(prop.object)} was not called{with_argument}"
    return f"not true {scope}" if rule.subject.api.startswith("torch.") or violation.receiver else "not true here"
