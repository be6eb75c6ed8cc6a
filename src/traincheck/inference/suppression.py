"""Suppression: leave out what another kept invariant implies, so that a book can be read."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from traincheck.inference.generalisation import General, more_general
from traincheck.vocab.invariant import Invariant


@dataclass(frozen=True, slots=True)
class Implied:
    """A rule left out, and the one that implies it."""

    rule: Invariant
    by: Invariant
    why: str


def suppress(rules: Iterable[Invariant], levels: Iterable[tuple[str, ...]]) -> tuple[list[Invariant], list[Implied]]:
    """Split `rules` into those to keep and those that others imply.

    A rule about a class follows from the same rule about a more general one; one without a fixed argument from the
    same with it. Calls that alternate with the update of the parameters (one between two of the other, both ways) have
    the same cycle, so one set of rules about it is enough.
    """
    kept = {rule.id: rule for rule in rules}
    general = more_general(levels)
    implied: list[Implied] = []
    for test in (_by_class, _by_argument, _by_other_name, _by_alternation):
        index = _Index(kept.values(), general)
        for rule in sorted(kept.values(), key=lambda rule: rule.id):
            found = test(rule, index)
            if found is not None:
                implied.append(Implied(rule, *found))
                del kept[rule.id]
    return list(kept.values()), implied


Family = tuple[str, str, str, str, str]
CYCLE, PRECEDED = "cycle", "preceded by"


class _Index:
    """Rules by what they say."""

    def __init__(self, rules: Iterable[Invariant], general: General) -> None:
        self.general = general
        self.rules: dict[Family, list[Invariant]] = {}
        self.updates: set[str] = set()  # calls that change parameters: the heartbeat of a training loop
        for rule in rules:
            self.rules.setdefault(_family(rule, rule.subject.api, rule.property.object), []).append(rule)
            if rule.subject.grain == "call" and rule.property.object == "parameter.data":
                self.updates.add(rule.subject.api)

    def weaker(self, rule: Invariant, api: str, thing: str, detail: str | None = None) -> Invariant | None:
        """A rule on `api` and `thing`, else like `rule`, whose precondition asks no more (None: any fixed argument)."""
        for other in self.rules.get(_family(rule, api, thing), ()):
            if other.id == rule.id or not rule.precondition.implies(other.precondition):
                continue
            if other.property.detail == detail or (detail is None and "=" in other.property.detail):
                return other
        return None


def _family(rule: Invariant, api: str, thing: str) -> Family:
    return (rule.relation, api, rule.subject.grain, rule.property.verb, thing)


def _by_class(rule: Invariant, index: _Index) -> tuple[Invariant, str] | None:
    for api in sorted(index.general.get(rule.subject.api, ())):
        other = index.weaker(rule, api, rule.property.object, rule.property.detail)
        if other is not None:
            return other, "the same holds of a more general class"
    return None


def _by_argument(rule: Invariant, index: _Index) -> tuple[Invariant, str] | None:
    if rule.property.detail:
        return None
    other = index.weaker(rule, rule.subject.api, rule.property.object)
    if other is not None and other.severity == rule.severity:
        return other, "the same holds with a fixed argument"
    return None


def _by_other_name(rule: Invariant, index: _Index) -> tuple[Invariant, str] | None:
    for thing in sorted(index.general.get(rule.property.object, ())):
        other = index.weaker(rule, rule.subject.api, thing, rule.property.detail)
        if other is not None:
            return other, "the call inside is told by its more general name, which transfers"
    return None


def _by_alternation(rule: Invariant, index: _Index) -> tuple[Invariant, str] | None:
    if rule.subject.grain != CYCLE or rule.subject.api in index.updates:
        return None
    for update in sorted(index.updates):
        there = index.weaker(rule, rule.subject.api, update, "")
        back = index.weaker(rule, update, rule.subject.api, "")
        other = index.weaker(rule, update, rule.property.object, rule.property.detail)
        if there is not None and back is not None and other is not None and rule.id != there.id:
            return other, f"calls of it alternate with {update}"
    return None
