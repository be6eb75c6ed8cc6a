"""The engine: walks the occasions of deployed subjects, and notes where a property is absent."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from traincheck import plugins
from traincheck.checking.evidence import clipped, concerned, given_back, told
from traincheck.relations.base import compares_ranks
from traincheck.vocab.demand import NOTHING, Demand
from traincheck.vocab.events import Call, Window
from traincheck.vocab.finding import Site, Violation
from traincheck.vocab.invariant import Invariant
from traincheck.vocab.occasion import Occasion, Subject
from traincheck.vocab.ranks import NOT_APART, Apart

MOST_VIOLATIONS = 200
"""Violations kept for each invariant and process; beyond that only the count goes on, so that memory is bounded."""

OF_RESULTS = ("returns size", "returns length", "returns width", "returns more", "gives back")
"""Verbs of properties about what a call returned: there its sizes are evidence."""

OF_CLIPPING = "leaves norm"
"""The verb of properties about gradients after clipping."""

MOST_ALTERNATIVES = 2
"""What held instead is told of so many properties: of a setting there is one, more would be a list."""

OF_STEP = "step"
"""The grain of rules about what a step does to each parameter: the others around the call tell nothing of those."""


@dataclass(slots=True)
class Tried:
    """How one invariant fared in one process: occasions on which it was judged, and on which it failed."""

    triggered: int = 0
    failed: int = 0


@dataclass
class Outcome:
    """What the engine has to say of one process; outcomes of several processes are told together."""

    rank: int = 0
    process: int = 0
    tried: dict[str, Tried] = field(default_factory=dict)
    violations: list[Violation] = field(default_factory=list)
    windows: int = 0
    steps: int = 0
    last_failed_step: dict[str, int] = field(default_factory=dict)


def demand_of(invariants: Iterable[Invariant]) -> Demand:
    """What must be observed to judge `invariants`."""
    relations = plugins.load("traincheck.relations")
    demand = NOTHING
    for rule in invariants:
        if rule.relation in relations:
            demand |= relations[rule.relation].needs(rule.subject, rule.property)
    return demand


class Engine:
    """Feeds the windows of one process, in order, to the relations of the deployed invariants."""

    def __init__(self, invariants: Sequence[Invariant], rank: int = 0, process: int = 0) -> None:
        self.outcome = Outcome(rank, process, {rule.id: Tried() for rule in invariants})
        self._deployed: dict[str, dict[Subject, list[Invariant]]] = {}
        for rule in invariants:
            self._deployed.setdefault(rule.relation, {}).setdefault(rule.subject, []).append(rule)
        self._classes = classes = plugins.load("traincheck.relations")
        self._relations: list[tuple[str, Any]] = [
            (name, classes[name](frozenset(subjects))) for name, subjects in self._deployed.items() if name in classes
        ]
        self.unknown = tuple(sorted(set(self._deployed) - set(classes)))
        self._kept: dict[str, int] = {}

    def feed(self, window: Window) -> list[Violation]:
        """Judge one window; the violations in it, one for each invariant that failed."""
        outcome = self.outcome
        outcome.windows += 1
        outcome.steps = max(outcome.steps, window.step)
        return self._judge(window, ((name, relation.occasions(window)) for name, relation in self._relations))

    def feed_ranks(self, windows: Sequence[Window]) -> list[Violation]:
        """Judge what relations say of the same window of several ranks; a violation is told of the first of them."""
        self.outcome.steps = max(self.outcome.steps, windows[0].step)
        comparing = ((name, relation) for name, relation in self._relations if compares_ranks(relation))
        told = ((name, relation.across(windows)) for name, relation in comparing)
        ranks = tuple(window.rank for window in windows)
        return self._judge(windows[0], told, Apart(ranks, len(ranks)))

    def _judge(
        self, window: Window, told: Iterable[tuple[str, Iterable[Occasion]]], between: Apart = NOT_APART
    ) -> list[Violation]:
        """`between` names the ranks whose windows these are, for occasions that do not tell which of them differ."""
        found: dict[str, tuple[Invariant, list[Occasion]]] = {}
        for name, occasions in told:
            deployed = self._deployed[name]
            for occasion in occasions:
                for rule in deployed.get(occasion.subject, ()):
                    if self._fails(rule, occasion):
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

    def _fails(self, rule: Invariant, occasion: Occasion) -> bool:
        held = rule.property in occasion.held
        if not held and occasion.failed is not None and rule.property not in occasion.failed:
            return False
        if not rule.applies(occasion.context):
            return False
        tried = self.outcome.tried[rule.id]
        tried.triggered += 1
        if held:
            return False
        tried.failed += 1
        return True

    def _keep(self, violation: Violation) -> None:
        name = violation.invariant.id
        self.outcome.last_failed_step[name] = violation.step
        self._kept[name] = kept = self._kept.get(name, 0) + 1
        if kept <= MOST_VIOLATIONS:
            self.outcome.violations.append(violation)


def _shown(rule: Invariant, call: Call, window: Window, only: Iterable[str]) -> tuple[str, ...]:
    """What of the call is worth a look; `only` as `told` takes it."""
    if rule.property.verb == OF_CLIPPING:
        return clipped(call)
    return told(call, window, tuple(only)) or (given_back(call) if rule.property.verb in OF_RESULTS else ())


def _violation(
    rule: Invariant, occasions: list[Occasion], window: Window, instead: tuple[str, ...], between: Apart
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
        apart=next((occasion.apart for occasion in occasions if occasion.apart.ranks), between),
    )
