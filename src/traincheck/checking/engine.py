"""The engine: walks the occasions of deployed subjects, and notes where a property is absent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from traincheck import plugins
from traincheck.checking.deployed_rules import Deployed, Rule
from traincheck.checking.deployed_rules import Tried as Tried
from traincheck.checking.evidence import clipped, concerned, given_back, told
from traincheck.checking.memory_limit import Memory
from traincheck.checking.suspended_rules import Resting
from traincheck.relations.base import compares_ranks, needed
from traincheck.vocab.availability import Absence
from traincheck.vocab.demand import Demand, union_of
from traincheck.vocab.events import Call, Window
from traincheck.vocab.finding import Site, Violation
from traincheck.vocab.invariant import Invariant
from traincheck.vocab.occasion import Occasion
from traincheck.vocab.ranks import NONE_DIFFER, DifferingRanks

MOST_VIOLATIONS = 200
MOST_IN_ALL, FEW = 5_000, 10
"""Violations kept for each invariant and process, and in all before it is only a few of each; beyond that the count
goes on, so that memory is bounded."""

OF_RESULTS = ("returns size", "returns length", "returns width", "returns more", "gives back")
"""Verbs of properties about what a call returned: there its sizes are evidence."""

OF_CLIPPING = "leaves norm"
"""The verb of properties about gradients after clipping."""

MOST_ALTERNATIVES = 2
"""What held instead is told of so many properties: of a setting there is one, more would be a list."""

OF_STEP = "step"
"""The grain of rules about what a step does to each parameter: the others around the call tell nothing of those."""


@dataclass
class Outcome:
    """What the engine has to say of one process; outcomes of several processes are told together.

    `failed` tells of each rule in how many windows it failed, and the step of the last one, for not all `violations`
    are kept. `absences` are sources that observed nothing for a while, `resting` the rules (by id, with the reason)
    that were not judged in the end.
    """

    rank: int = 0
    process: int = 0
    tried: dict[str, Tried] = field(default_factory=dict)
    violations: list[Violation] = field(default_factory=list)
    windows: int = 0
    steps: int = 0
    failed: dict[str, tuple[int, int]] = field(default_factory=dict)
    absences: list[Absence] = field(default_factory=list)
    resting: dict[str, str] = field(default_factory=dict)


def demand_of(invariants: Iterable[Invariant]) -> Demand:
    """What must be observed to judge `invariants`."""
    asked = {(rule.relation, rule.subject, rule.property) for rule in invariants}
    relations = plugins.load("traincheck.relations", {name for name, _, _ in asked})
    return union_of(needed(relations[name], subject, prop) for name, subject, prop in asked if name in relations)


class Engine:
    """Feeds the windows of one process, in order, to the relations of the deployed invariants."""

    def __init__(self, invariants: Sequence[Invariant], rank: int = 0, process: int = 0) -> None:
        self.outcome = Outcome(rank, process, {rule.id: Tried() for rule in invariants})
        self._deployed: dict[str, Deployed] = {}
        for rule in invariants:
            self._deployed.setdefault(rule.relation, Deployed()).add(rule, self.outcome.tried[rule.id])
        self._classes = classes = plugins.load("traincheck.relations", self._deployed)
        self._relations: list[tuple[str, Any]] = [
            (name, classes[name](rules.subjects)) for name, rules in self._deployed.items() if name in classes
        ]
        self._memories = {name: Memory(relation) for name, relation in self._relations}
        self.unknown = tuple(sorted(set(self._deployed) - set(classes)))
        self._resting = Resting(invariants, classes)

    def feed(self, window: Window) -> list[Violation]:
        """Judge one window; the violations in it, one for each invariant that failed."""
        outcome = self.outcome
        outcome.windows += 1
        self._rest(window.off, window.step)
        outcome.steps = max(outcome.steps, window.step)
        told = ((name, relation.occasions(*self._memories[name].shown([window]))) for name, relation in self._relations)
        return self._judge(window, told)

    def feed_ranks(self, windows: Sequence[Window]) -> list[Violation]:
        """Judge what relations say of the same window of several ranks; a violation is told of the first of them."""
        self.outcome.steps = max(self.outcome.steps, windows[0].step)
        self._rest({name: why for window in windows for name, why in window.off.items()}, windows[0].step)
        comparing = ((name, relation) for name, relation in self._relations if compares_ranks(relation))
        told = ((name, relation.across(self._memories[name].shown(windows))) for name, relation in comparing)
        ranks = tuple(window.rank for window in windows)
        return self._judge(windows[0], told, DifferingRanks(ranks, len(ranks)))

    def mute(self, muted: Mapping[str, str]) -> None:
        """From the next window on these rules (by id, with the reason) are not judged, and no others are muted."""
        self._resting.mute(muted)
        self.outcome.resting = self._resting.reasons

    def _rest(self, off: Mapping[str, str], step: int) -> None:
        if off or self.outcome.absences:
            self._resting.meet(off, step)
            self.outcome.absences, self.outcome.resting = self._resting.absences, self._resting.reasons

    def _judge(
        self, window: Window, told: Iterable[tuple[str, Iterable[Occasion]]], between: DifferingRanks = NONE_DIFFER
    ) -> list[Violation]:
        """`between` names the ranks whose windows these are, for occasions that do not tell which of them differ."""
        found: dict[str, tuple[Invariant, list[Occasion]]] = {}
        for name, occasions in told:
            deployed = self._deployed[name]
            for occasion in occasions:
                for rule in self._failing(deployed, occasion):
                    found.setdefault(rule.id, (rule, []))[1].append(occasion)
        violations = [
            _violation(rule, occasions, window, self._instead(rule, occasions), between)
            for rule, occasions in found.values()
        ]
        for violation in violations:
            self._keep(violation)
        return violations

    def _instead(self, rule: Invariant, occasions: Sequence[Occasion]) -> tuple[str, ...]:
        """What held in place of the property: the like of it with another value, in the relation's own words."""
        alike = {
            prop
            for occasion in occasions
            for prop in occasion.held
            if prop != rule.property and (prop.verb, prop.object) == (rule.property.verb, rule.property.object)
        }
        describe = self._classes[rule.relation].describe
        return tuple(f"here {describe(rule.subject, prop)}" for prop in sorted(alike)[:MOST_ALTERNATIVES])

    def _failing(self, deployed: Deployed, occasion: Occasion) -> Sequence[Invariant]:
        """The rules that fail on this occasion, in the order in which they were deployed."""
        failing: list[Rule] = []
        resting = self._resting.ids
        for rule, held in deployed.judged(occasion):
            if resting and rule.invariant.id in resting:
                continue
            rule.tried.triggered += 1
            if not held:
                rule.tried.failed += 1
                failing.append(rule)
        return [rule.invariant for rule in sorted(failing, key=lambda rule: rule.place)] if failing else ()

    def _keep(self, violation: Violation) -> None:
        name = violation.invariant.id
        times, _ = self.outcome.failed.get(name, (0, 0))
        self.outcome.failed[name] = times + 1, violation.step
        if times < (MOST_VIOLATIONS if len(self.outcome.violations) < MOST_IN_ALL else FEW):
            self.outcome.violations.append(violation)


def _shown(rule: Invariant, call: Call, window: Window, only: Iterable[str]) -> tuple[str, ...]:
    """What of the call is worth a look; `only` as `told` takes it."""
    if rule.property.verb == OF_CLIPPING:
        return clipped(call)
    return told(call, window, tuple(only)) or (given_back(call) if rule.property.verb in OF_RESULTS else ())


def _violation(
    rule: Invariant, occasions: list[Occasion], window: Window, instead: tuple[str, ...], between: DifferingRanks
) -> Violation:
    seq = min(occasion.seq for occasion in occasions)
    call = window.by_seq.get(seq)
    variables = dict.fromkeys(name for occasion in occasions for name in occasion.variables)
    if not variables and call is not None:
        variables = dict.fromkeys(concerned(call, window))
    site = next((occasion.site for occasion in occasions if occasion.site), call.site if call is not None else "")
    only = variables if rule.subject.grain == OF_STEP else ()
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
        evidence=(*instead, *(_shown(rule, call, window, only) if call is not None else ())),
        note=next((occasion.note for occasion in occasions if occasion.note), ""),
        differing=next((occasion.differing for occasion in occasions if occasion.differing.ranks), between),
    )
