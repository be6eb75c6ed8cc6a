"""Deployed rules, found by what an occasion tells: judging it costs what it tells, and not what the book holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from traincheck.vocab.bounded_cache import BoundedCache
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


Judged = tuple[Rule, bool]
"""A rule that is judged on an occasion, and whether its property held."""

Speaking = dict[Property, tuple[list[Judged], list[Judged]]]
"""The rules of a subject that speak of occasions in one context, by their property: as they are told where that failed,
and where it held."""


class Deployed:
    """The deployed rules of one relation."""

    def __init__(self) -> None:
        self._of: dict[Subject, list[Rule]] = {}
        self._speaking: dict[tuple[Subject, Facts], Speaking] = {}
        self._of_objects: BoundedCache[tuple[Subject, int], tuple[Speaking, Facts]] = (
            BoundedCache()
        )  # as in relations/base.py

    def add(self, rule: Invariant, tried: Tried) -> None:
        """Deploy a rule; `tried` is where it is counted how it fares."""
        found = self._of.setdefault(rule.subject, [])
        found.append(Rule(len(found), rule, tried))

    @property
    def subjects(self) -> frozenset[Subject]:
        """What the rules are about."""
        return frozenset(self._of)

    def judged(self, occasion: Occasion) -> Sequence[Judged]:
        """The rules that are judged on this occasion, each with whether its property held."""
        subject, context, held, failed = occasion[:4]
        key = subject, id(context)
        known = self._of_objects.get(key)
        if known is None:
            if subject not in self._of:
                return ()
            known = self._of_objects.put(key, (self._speaking_of(subject, context), context))
        speaking = known[0]
        found: list[Judged] = []
        if failed is None or len(speaking) <= len(held) + len(failed):
            for prop, (if_failed, if_held) in speaking.items():
                if prop in held:
                    found += if_held
                elif failed is None or prop in failed:
                    found += if_failed
            return found
        for prop in held:
            if prop in speaking:
                found += speaking[prop][True]
        for prop in failed:
            if prop in speaking and prop not in held:
                found += speaking[prop][False]
        return found

    def _speaking_of(self, subject: Subject, context: Facts) -> Speaking:
        key = (subject, context)
        found = self._speaking.get(key)
        if found is None:
            if len(self._speaking) >= _MOST_CONTEXTS:
                self._speaking.clear()
            found = self._speaking[key] = {}
            for rule in self._of[subject]:
                if rule.invariant.applies(context):
                    fates = found.setdefault(rule.invariant.property, ([], []))
                    for so in (False, True):
                        fates[so].append((rule, so))
        return found
