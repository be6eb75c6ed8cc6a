"""Checks windows against deployed rules: finds the occasions on which a property should hold and does not.

Note [Failures that pass]
A function may call others for some batches only: it needs no mask for a batch without padding. Three runs of one
program may not show such a batch. An error in the program stays. So a rule of one program about the calls that a
function makes is reported only if it fails twice in a row, once it has held often enough. (For the operations of
modules, see Note [Branches that the data choose] in sources/gradients/graph_source.py.)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from traincheck import plugins
from traincheck.checking.deployed_rules import DeployedRule, DeployedRules, RuleCounts
from traincheck.checking.evidence import (
    arguments_and_result,
    differing_elements,
    parameter_states,
    parameters_around,
    unclipped_gradients,
)
from traincheck.checking.memory_limit import MemoryLimit
from traincheck.checking.suspended_rules import SuspendedRules
from traincheck.relations.base import compares_ranks, needed
from traincheck.vocab.availability import Absence
from traincheck.vocab.demand import Demand, union_of
from traincheck.vocab.events import Call, Window
from traincheck.vocab.finding import Site, Violation
from traincheck.vocab.invariant import PIPELINE, Invariant
from traincheck.vocab.occasion import Occasion
from traincheck.vocab.properties import CONTAINS_CALL, Evidence, band_of, elements_of, traits_of
from traincheck.vocab.ranks import NONE_DIFFER, DifferingRanks

MAX_VIOLATIONS = 200
MAX_IN_ALL, FEW = 5_000, 10
"""Violations kept for each invariant and process; and in all, before only a few of each are kept. Further violations
are only counted, so memory is bounded."""

MAX_ALTERNATIVES = 2
"""Properties that held instead, in the evidence at most: a setting has one, and more would be a list."""

STEP_GRAIN = "step"
"""The grain of rules about each parameter in a step. Other parameters around the call are no evidence for them."""


@dataclass
class Outcome:
    """The outcome of checking one process; a report combines the outcomes of all processes.

    `tried` has the counts of each rule, by id. `failed` has the number of windows in which a rule failed and the step
    of the last one, because not all `violations` are kept. `absences` are sources that observed nothing for a while,
    `suspended` the rules (by id, with the reason) that were not judged at the end.
    """

    rank: int = 0
    process: int = 0
    tried: dict[str, RuleCounts] = field(default_factory=dict)
    violations: list[Violation] = field(default_factory=list)
    windows: int = 0
    steps: int = 0
    failed: dict[str, tuple[int, int]] = field(default_factory=dict)
    absences: list[Absence] = field(default_factory=list)
    suspended: dict[str, str] = field(default_factory=dict)


def demand_of(invariants: Iterable[Invariant]) -> Demand:
    """The demand of all `invariants`."""
    subjects = {(rule.relation, rule.subject, rule.property) for rule in invariants}
    relations = plugins.load("traincheck.relations", {name for name, _, _ in subjects})
    return union_of(needed(relations[name], subject, prop) for name, subject, prop in subjects if name in relations)


HELD_OFTEN = 10
"""Occasions on which a rule has held before a failure may pass."""


class _Open(NamedTuple):
    """A violation, how often the rule was judged by then, and how often it failed in that window."""

    violation: Violation
    triggered: int
    failures: int


class PassingFailures:
    """The violations that wait for the next occasion of their rule, see Note [Failures that pass]."""

    def __init__(self, counts: Mapping[str, RuleCounts]) -> None:
        self._counts = counts
        self._open: dict[str, _Open] = {}

    def confirmed(self, violations: Sequence[tuple[Violation, int]]) -> list[Violation]:
        """The violations of a window that count, each given with the number of its failures; and earlier ones that
        were held back and have been followed by another one."""
        if not self._open and not violations:
            return []
        failing = {violation.invariant.id for violation, _ in violations}
        repeated = {name: self._open.pop(name) for name in failing.intersection(self._open)}
        self._open = {
            name: opened
            for name, opened in self._open.items()
            if self._counts[name].triggered == opened.triggered  # else the rule has held since
        }
        for name, opened in repeated.items():
            self._counts[name].failed += opened.failures
        counting = [opened.violation for opened in repeated.values()]
        for violation, failures in violations:
            counts = self._counts[violation.invariant.id]
            has_held = counts.triggered - counts.failed >= HELD_OFTEN
            if violation.invariant.id in repeated or not (has_held and _depends_on_data(violation.invariant)):
                counting.append(violation)
                continue
            counts.failed -= failures
            self._open[violation.invariant.id] = _Open(violation, counts.triggered, failures)
        return counting


def _depends_on_data(rule: Invariant) -> bool:
    """Whether data may decide if a rule holds, as good runs of one program do not show."""
    return rule.scope == PIPELINE and rule.property.verb == CONTAINS_CALL


class Engine:
    """Feeds the windows of one process, in order, to the relations of the deployed invariants."""

    def __init__(self, invariants: Sequence[Invariant], rank: int = 0, process: int = 0) -> None:
        self.outcome = Outcome(rank, process, {rule.id: RuleCounts() for rule in invariants})
        self._deployed: dict[str, DeployedRules] = {}
        for rule in invariants:
            self._deployed.setdefault(rule.relation, DeployedRules()).add(rule, self.outcome.tried[rule.id])
        self._classes = classes = plugins.load("traincheck.relations", self._deployed)
        self._relations: list[tuple[str, Any]] = [
            (name, classes[name](rules.subjects)) for name, rules in self._deployed.items() if name in classes
        ]
        self._limits = {name: MemoryLimit(relation) for name, relation in self._relations}
        self.unknown = tuple(sorted(set(self._deployed) - set(classes)))
        self._suspended = SuspendedRules(invariants, classes)
        self._passing = PassingFailures(self.outcome.tried)

    def feed(self, window: Window) -> list[Violation]:
        """Judge one window; the violations in it, one for each invariant that failed."""
        outcome = self.outcome
        outcome.windows += 1
        self._suspend(window.off, window.step)
        outcome.steps = max(outcome.steps, window.step)
        occasions = (
            (name, relation.occasions(*self._limits[name].with_gaps([window]))) for name, relation in self._relations
        )
        return self._judge(window, occasions)

    def feed_ranks(self, windows: Sequence[Window]) -> list[Violation]:
        """Judge the same window of several ranks; a violation has the rank and the window of the first of them."""
        self.outcome.steps = max(self.outcome.steps, windows[0].step)
        self._suspend({name: reason for window in windows for name, reason in window.off.items()}, windows[0].step)
        comparing = ((name, relation) for name, relation in self._relations if compares_ranks(relation))
        occasions = ((name, relation.across(self._limits[name].with_gaps(windows))) for name, relation in comparing)
        ranks = tuple(window.rank for window in windows)
        return self._judge(windows[0], occasions, DifferingRanks(ranks, len(ranks)))

    def mute(self, muted: Mapping[str, str]) -> None:
        """Suspend these rules (by id, with the reason) from the next window on; other mutes end."""
        self._suspended.mute(muted)
        self.outcome.suspended = self._suspended.reasons

    def _suspend(self, off: Mapping[str, str], step: int) -> None:
        if off or self.outcome.absences:
            self._suspended.next_window(off, step)
            self.outcome.absences, self.outcome.suspended = self._suspended.absences, self._suspended.reasons

    def _judge(
        self,
        window: Window,
        occasions_of: Iterable[tuple[str, Iterable[Occasion]]],
        between: DifferingRanks = NONE_DIFFER,
    ) -> list[Violation]:
        """The violations in the occasions of each relation.

        `between` are the ranks that were compared, for occasions that do not say which of them differ.
        """
        failures: dict[str, tuple[Invariant, list[Occasion]]] = {}
        for name, occasions in occasions_of:
            deployed = self._deployed[name]
            for occasion in occasions:
                for rule in () if occasion.unsettled else self._failing(deployed, occasion):
                    failures.setdefault(rule.id, (rule, []))[1].append(occasion)
        violations = self._passing.confirmed(
            [
                (_violation(rule, occasions, window, self._alternatives(rule, occasions), between), len(occasions))
                for rule, occasions in failures.values()
            ]
        )
        for violation in violations:
            self._keep(violation)
        return violations

    def _alternatives(self, rule: Invariant, occasions: Sequence[Occasion]) -> tuple[str, ...]:
        """Similar properties with another value that held instead, in the words of the relation. For a rule about a
        set: the elements that are new or missing. For a rule about a number: its range in good runs."""
        band = band_of(rule.property)
        if band is not None:
            return (f"in good runs {band.shown}",)
        known = elements_of(rule.property)
        if known is not None:
            return differing_elements(known, occasions)
        similar = {
            prop
            for occasion in occasions
            for prop in occasion.held
            if prop != rule.property and (prop.verb, prop.object) == (rule.property.verb, rule.property.object)
        }
        describe = self._classes[rule.relation].describe
        return tuple(f"here {describe(rule.subject, prop)}" for prop in sorted(similar)[:MAX_ALTERNATIVES])

    def _failing(self, deployed: DeployedRules, occasion: Occasion) -> Sequence[Invariant]:
        """The rules that fail on this occasion, in the order in which they were deployed."""
        failing: list[DeployedRule] = []
        suspended = self._suspended.ids
        for rule, held in deployed.judged(occasion):
            if suspended and rule.invariant.id in suspended:
                continue
            rule.counts.triggered += 1
            if not held:
                rule.counts.failed += 1
                failing.append(rule)
        return [rule.invariant for rule in sorted(failing, key=lambda rule: rule.position)] if failing else ()

    def _keep(self, violation: Violation) -> None:
        name = violation.invariant.id
        times, _ = self.outcome.failed.get(name, (0, 0))
        self.outcome.failed[name] = times + 1, violation.step
        if times < (MAX_VIOLATIONS if len(self.outcome.violations) < MAX_IN_ALL else FEW):
            self.outcome.violations.append(violation)


def _evidence(rule: Invariant, call: Call, window: Window, only: Iterable[str]) -> tuple[str, ...]:
    """Evidence from the call; `only` limits it to these parameters."""
    if elements_of(rule.property) is not None:
        return ()  # how the elements differ says everything
    shown = traits_of(rule.property).evidence
    if shown is Evidence.CLIPPING:
        return unclipped_gradients(call)
    states = parameter_states(call, window, tuple(only))
    return states or (arguments_and_result(call) if shown is Evidence.RESULT else ())


def _violation(
    rule: Invariant, occasions: list[Occasion], window: Window, alternatives: tuple[str, ...], between: DifferingRanks
) -> Violation:
    seq = min(occasion.seq for occasion in occasions)
    call = window.by_seq.get(seq)
    variables = dict.fromkeys(name for occasion in occasions for name in occasion.variables)
    if not variables and call is not None:
        variables = dict.fromkeys(parameters_around(call, window))
    site = next((occasion.site for occasion in occasions if occasion.site), call.site if call is not None else "")
    only = variables if rule.subject.grain == STEP_GRAIN else ()
    return Violation(
        invariant=rule,
        step=window.step,
        rank=window.rank,
        process=window.process,
        window=window.index,
        stage=window.stage,
        seq=seq,
        site=Site.parse(site),
        receiver=call.receiver if call is not None else "",
        variables=tuple(variables),
        occasions=sum(max(1, len(occasion.variables)) for occasion in occasions),
        evidence=(*alternatives, *(_evidence(rule, call, window, only) if call is not None else ())),
        note=next((occasion.note for occasion in occasions if occasion.note), ""),
        differing=next((occasion.differing for occasion in occasions if occasion.differing.ranks), between),
    )
