"""Finds the deployed rules for an occasion; the cost depends on the properties of the occasion, not on the book."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from traincheck.vocab.bounded_cache import BoundedCache
from traincheck.vocab.facts import Facts
from traincheck.vocab.invariant import Invariant
from traincheck.vocab.occasion import Occasion, Property, Subject
from traincheck.vocab.properties import ElementSet, elements_of

_MAX_CONTEXTS = 100_000
"""Cached contexts at most. The vocabulary of contexts is closed, so more of them are a sign of an error."""


@dataclass(slots=True)
class RuleCounts:
    """Counts for one invariant in one process: occasions on which it was judged, and on which it failed."""

    triggered: int = 0
    failed: int = 0


@dataclass(frozen=True, slots=True)
class DeployedRule:
    """A deployed rule, its position among the rules of its subject, and its counts."""

    position: int
    invariant: Invariant
    counts: RuleCounts = field(compare=False)


JudgedRule = tuple[DeployedRule, bool]
"""A rule that is judged on an occasion, and whether its property held."""

RulesByProperty = dict[Property, tuple[list[JudgedRule], list[JudgedRule]]]
"""The rules of a subject that apply in one context, by property: the results if it failed, and if it held."""


class DeployedRules:
    """The deployed rules of one relation."""

    def __init__(self) -> None:
        self._by_subject: dict[Subject, list[DeployedRule]] = {}
        self._sets: dict[Subject, list[tuple[DeployedRule, ElementSet]]] = {}
        self._by_context: dict[tuple[Subject, Facts], RulesByProperty] = {}
        # Keyed by the id of a context, as in relations/base.py; the entry keeps the context alive.
        self._by_id: BoundedCache[tuple[Subject, int], tuple[RulesByProperty, Facts]] = BoundedCache()

    def add(self, rule: Invariant, counts: RuleCounts) -> None:
        """Deploy a rule; its occasions are counted in `counts`."""
        rules = self._by_subject.setdefault(rule.subject, [])
        deployed = DeployedRule(len(rules), rule, counts)
        rules.append(deployed)
        elements = elements_of(rule.property)
        if elements is not None:
            self._sets.setdefault(rule.subject, []).append((deployed, elements))

    @property
    def subjects(self) -> frozenset[Subject]:
        """The subjects of the rules."""
        return frozenset(self._by_subject)

    def judged(self, occasion: Occasion) -> Sequence[JudgedRule]:
        """The rules that are judged on this occasion, each with whether its property held."""
        subject, context, held, failed = occasion[:4]
        key = subject, id(context)
        entry = self._by_id.get(key)
        if entry is None:
            if subject not in self._by_subject:
                return ()
            entry = self._by_id.put(key, (self._applicable(subject, context), context))
        rules = entry[0]
        judged: list[JudgedRule] = []
        for rule, elements in self._sets.get(subject, ()):
            if rule.invariant.applies(context):
                judged.append((rule, elements.required <= held if failed is None else held <= elements.allowed))
        if failed is None or len(rules) <= len(held) + len(failed):
            for prop, (if_failed, if_held) in rules.items():
                if prop in held:
                    judged += if_held
                elif failed is None or prop in failed:
                    judged += if_failed
            return judged
        for prop in held:
            if prop in rules:
                judged += rules[prop][True]
        for prop in failed:
            if prop in rules and prop not in held:
                judged += rules[prop][False]
        return judged

    def _applicable(self, subject: Subject, context: Facts) -> RulesByProperty:
        key = (subject, context)
        rules = self._by_context.get(key)
        if rules is None:
            if len(self._by_context) >= _MAX_CONTEXTS:
                self._by_context.clear()
            rules = self._by_context[key] = {}
            for rule in self._by_subject[subject]:
                if rule.invariant.applies(context) and elements_of(rule.invariant.property) is None:
                    results = rules.setdefault(rule.invariant.property, ([], []))
                    for held in (False, True):
                        results[held].append((rule, held))
        return rules
