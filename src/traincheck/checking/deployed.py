"""Deployed rules, found by what an occasion tells: judging it costs what it tells, and not what the book holds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from traincheck.vocab.facts import Facts
from traincheck.vocab.invariant import Invariant
from traincheck.vocab.occasion import Occasion, Property, Subject

_MOST_CONTEXTS = 100_000
"""What is remembered is forgotten beyond this: contexts are of a closed vocabulary, so more are a sign of an error."""


@dataclass(slots=True)
class Tried:
    """How one invariant fared in one process: occasions on which it was judged, and on which it failed."""

    triggered: int = 0
    failed: int = 0


@dataclass(frozen=True, slots=True)
class Rule:
    """A deployed rule, its place among the others of its subject, and how it fared."""

    place: int
    invariant: Invariant
    tried: Tried = field(compare=False)


Speaking = dict[Property, list[Rule]]
"""The rules of a subject that speak of occasions in one context, by their property."""


class Deployed:
    """The deployed rules of one relation."""

    def __init__(self) -> None:
        self._of: dict[Subject, list[Rule]] = {}
        self._speaking: dict[tuple[Subject, Facts], Speaking] = {}

    def add(self, rule: Invariant, tried: Tried) -> None:
        """Deploy a rule; `tried` is where it is counted how it fares."""
        found = self._of.setdefault(rule.subject, [])
        found.append(Rule(len(found), rule, tried))

    @property
    def subjects(self) -> frozenset[Subject]:
        """What the rules are about."""
        return frozenset(self._of)

    def judged(self, occasion: Occasion) -> Iterator[tuple[Rule, bool]]:
        """The rules that are judged on this occasion, each with whether its property held."""
        if occasion.subject not in self._of:
            return
        speaking = self._speaking_of(occasion.subject, occasion.context)
        held, failed = occasion.held, occasion.failed
        if failed is None or len(speaking) <= len(held) + len(failed):
            for prop, rules in speaking.items():
                if prop in held:
                    yield from ((rule, True) for rule in rules)
                elif failed is None or prop in failed:
                    yield from ((rule, False) for rule in rules)
            return
        yield from _among(held, speaking, True)
        yield from ((rule, so) for rule, so in _among(failed, speaking, False) if rule.invariant.property not in held)

    def _speaking_of(self, subject: Subject, context: Facts) -> Speaking:
        key = (subject, context)
        found = self._speaking.get(key)
        if found is None:
            if len(self._speaking) >= _MOST_CONTEXTS:
                self._speaking.clear()
            found = self._speaking[key] = {}
            for rule in self._of[subject]:
                if rule.invariant.applies(context):
                    found.setdefault(rule.invariant.property, []).append(rule)
        return found


def _among(told: Iterable[Property], speaking: Speaking, so: bool) -> Iterator[tuple[Rule, bool]]:
    for prop in told:
        for rule in speaking.get(prop, ()):
            yield rule, so
