"""Suppression: leave out rules that other kept rules imply, so that people can read a book.

Note [Implied rules]
Apart from the same rule about a more general class (see Note [Levels] in generalisation.py), a rule follows from

* the *order* of others: A comes before B and B before C, so A comes before C. An order is judged only in cycles that
  hold both calls, so there has to be a rule that B is in them;
* the same rule about the *update*: calls that alternate with the update of the parameters (one between two of the
  other, both ways) have the same cycle, and one set of rules about it is enough;
* a rule that *says more* about the same subject, as its relation declares: a fixed argument, or the same shape in place
  of the same batch.

In each case the other rule has to apply as widely, see Note [Covering] in rule_index.py. A rule that implies another
may be left out for a third one. Implication is transitive, so a kept rule stands at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from traincheck.inference.generalisation import Generalisation
from traincheck.inference.rule_index import Implication, RuleIndex, covers, first_covering, no_less_severe, reaches
from traincheck.vocab.facts import Facts
from traincheck.vocab.invariant import Invariant
from traincheck.vocab.occasion import Property, Subject
from traincheck.vocab.properties import PRECEDED_BY, THEN

CYCLE = "cycle"
"""The grain of rules about what happens between two calls."""


@dataclass(frozen=True, slots=True)
class Implied:
    """A rule left out, and the one that implies it."""

    rule: Invariant
    by: Invariant
    reason: str


def suppress(
    rules: Iterable[Invariant],
    levels: Iterable[tuple[str, ...]],
    relations: Mapping[str, Any],
    seen: Mapping[str, Collection[Facts]] = MappingProxyType({}),
) -> tuple[list[Invariant], list[Implied]]:
    """Split `rules` into those to keep and those that others imply.

    `levels` are the names of APIs, most specific first, and `relations` the classes by name; `seen` are the contexts
    that supported each rule, by id. The result does not depend on the order of the rules.
    """
    kept = {rule.id: rule for rule in rules}
    implied: list[Implied] = []
    general = Generalisation(levels)
    tests: tuple[Callable[[Invariant, RuleIndex], Implication | None], ...] = (
        general.by_class,
        general.by_content,
        _by_order,
        _by_alternation,
        _by_property,
    )
    for test in tests:
        index = RuleIndex(kept.values(), relations, seen)
        for rule in index.rules:
            implication = test(rule, index)
            if implication is not None:
                implied.append(Implied(rule, *implication))
                del kept[rule.id]
    return list(kept.values()), implied


def _by_order(rule: Invariant, index: RuleIndex) -> Implication | None:
    if rule.subject.grain != CYCLE or not rule.property.detail.startswith(THEN):
        return None
    for before in index.about(rule.relation, rule.subject):
        same_first = before.property.object == rule.property.object and before.property.detail.startswith(THEN)
        if not same_first or not covers(before, rule):
            continue
        middle = before.property.detail.removeprefix(THEN)
        after = index.saying(rule.relation, rule.subject, Property(PRECEDED_BY, middle, rule.property.detail))
        second = first_covering(rule, after)
        if second is not None and _is_called(middle, rule, index):
            return before, f"{middle} comes between the two, as {second.id} says"
    return None


def _is_called(api: str, rule: Invariant, index: RuleIndex) -> bool:
    """Whether a rule (possibly an optional practice) says that each cycle of `rule` contains a call of `api`."""
    statement = (rule.relation, rule.subject, Property(PRECEDED_BY, api))
    return any(
        reaches(other, rule) for rules in (index.saying(*statement), index.implying(*statement)) for other in rules
    )


def _by_alternation(rule: Invariant, index: RuleIndex) -> Implication | None:
    api = rule.subject.api
    if rule.subject.grain != CYCLE or api in index.updates:
        return None
    for update in index.updates:
        cycle = Subject(update, CYCLE)
        there = _reaching(rule, index.saying(rule.relation, rule.subject, Property(PRECEDED_BY, update)))
        back = _reaching(rule, index.saying(rule.relation, cycle, Property(PRECEDED_BY, api)))
        other = _reaching(rule, index.saying(rule.relation, cycle, rule.property))
        if there is not None and back is not None and other is not None and no_less_severe(other, rule):
            return other, f"calls of it alternate with {update}"
    return None


def _reaching(rule: Invariant, others: Iterable[Invariant]) -> Invariant | None:
    return next((other for other in others if reaches(other, rule)), None)


def _by_property(rule: Invariant, index: RuleIndex) -> Implication | None:
    other = first_covering(rule, index.implying(rule.relation, rule.subject, rule.property))
    return None if other is None else (other, "it says more of the same")
