"""Rule index: rules by what they say, and whether what one says is checked wherever another is.

Note [Covering]
A rule may be left out for another only where breaking it would break the other and be reported no less severely. So the
other has to speak wherever it does: its precondition is no stronger, it has experienced what the first has, and it was
borne out by each program that bore out the first. (Where a program never told the one, the other may not be judged in
programs like it; and a rule of one pipeline is not checked on others.)

Known limitation: that two rules are judged on the same occasions is taken from the programs that were learned from. In
a further program of another make, one of them may be judged alone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cached_property
from types import MappingProxyType
from typing import Any, TypeAlias

from traincheck.vocab.facts import Facts
from traincheck.vocab.invariant import ERROR, Invariant, Precondition
from traincheck.vocab.occasion import Property, Subject

Implication: TypeAlias = tuple[Invariant, str]
"""The rule that another follows from, and why it does."""

_Statement = tuple[str, Subject, Property]


class RuleIndex:
    """The rules of a book in the making. `relations` are the classes by name, which tell what properties imply; `seen`
    are the contexts in which each rule (by its id) was borne out, where they are known."""

    def __init__(
        self,
        rules: Iterable[Invariant],
        relations: Mapping[str, Any],
        seen: Mapping[str, Collection[Facts]] = MappingProxyType({}),
    ) -> None:
        self._seen = seen
        self.rules = sorted(rules, key=lambda rule: rule.id)
        self._saying: dict[_Statement, list[Invariant]] = {}
        self._implying: dict[_Statement, list[Invariant]] = {}
        self._about: dict[tuple[str, Subject], list[Invariant]] = {}
        for rule in self.rules:
            self._about.setdefault((rule.relation, rule.subject), []).append(rule)
            self._saying.setdefault((rule.relation, rule.subject, rule.property), []).append(rule)
            if rule.relation in relations:
                for prop in relations[rule.relation].implied(rule.property):
                    self._implying.setdefault((rule.relation, rule.subject, prop), []).append(rule)

    @cached_property
    def updates(self) -> tuple[str, ...]:
        """The calls that change parameters: the heartbeat of a training loop."""
        grain, changed = "call", "parameter.data"
        matches = (
            member for member in self.rules if member.subject.grain == grain and member.property.object == changed
        )
        return tuple(sorted({rule.subject.api for rule in matches}))

    def saying(self, relation: str, subject: Subject, prop: Property) -> Iterator[Invariant]:
        """The rules that say just this, by their ids."""
        return iter(self._saying.get((relation, subject, prop), ()))

    def implying(self, relation: str, subject: Subject, prop: Property) -> Iterator[Invariant]:
        """The rules that say more than this, by their ids."""
        return iter(self._implying.get((relation, subject, prop), ()))

    def about(self, relation: str, subject: Subject) -> Iterator[Invariant]:
        """The rules about this subject, by their ids."""
        return iter(self._about.get((relation, subject), ()))

    def borne_out_under(self, other: Invariant, rule: Invariant) -> bool:
        """Whether `other` speaks in every context in which `rule` was borne out, of the same programs at least."""
        contexts = self._seen.get(rule.id)
        return (
            bool(contexts)
            and _of_its_programs(other, rule)
            and no_less_severe(other, rule)
            and all(map(other.applies, contexts or ()))
        )


def first_covering(rule: Invariant, others: Iterable[Invariant]) -> Invariant | None:
    """The first of `others` that may stand for `rule` if it says as much, see Note [Covering]."""
    return next((other for other in others if covers(other, rule)), None)


def covers(other: Invariant, rule: Invariant) -> bool:
    """Whether `other` may stand for `rule` if it says as much, see Note [Covering]."""
    return reaches(other, rule) and no_less_severe(other, rule) and _has_experienced(other, rule)


def no_less_severe(other: Invariant, rule: Invariant) -> bool:
    """Whether breaking `other` is reported no less severely than breaking `rule`, also on programs of neither."""
    if other.severity not in (ERROR, rule.severity):
        return False
    if rule.elsewhere is None:
        return True
    return other.elsewhere is not None and other.elsewhere.severity in (ERROR, rule.elsewhere.severity)


def reaches(other: Invariant, rule: Invariant) -> bool:
    """Whether another rule is checked on every program that `rule` is, under no stronger condition."""
    return _of_its_programs(other, rule) and rule.precondition.implies(other.precondition)


def _of_its_programs(other: Invariant, rule: Invariant) -> bool:
    """Whether `other` was borne out by each program that bore out `rule`, and is checked wherever it is."""
    return other.id != rule.id and other.program in ("", rule.program) and set(rule.origin) <= set(other.origin)


def _has_experienced(other: Invariant, rule: Invariant) -> bool:
    """Whether `other` speaks of all circumstances that `rule` does."""
    clauses = set(rule.experience.clauses)
    return all(
        clause in clauses or rule.precondition.implies(Precondition((clause,))) for clause in other.experience.clauses
    )
