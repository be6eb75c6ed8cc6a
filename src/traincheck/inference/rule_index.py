"""An index of rules by what they say, and the test whether one rule is checked wherever another is.

Note [Covering]
A rule may be left out for another only if a violation of the rule would violate the other and be reported no less
severely. So the other has to apply wherever the rule does. Its precondition is no stronger, it has the same experience,
and each program that supported the rule supported it. (If a program never showed the other rule, that rule may not be
judged in similar programs. A rule of one pipeline is not checked on others.)

Known limitation: whether two rules are judged on the same occasions is taken from the learned programs. In a further
program of another kind, one of them may be judged alone.
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
"""The rule that implies another, and the reason."""

_Statement = tuple[str, Subject, Property]


class RuleIndex:
    """The rules of a book that is being learned. `relations` are the classes by name, which know what properties imply;
    `seen` are the contexts that supported each rule (by its id), if known.
    """

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
        """The calls that change parameters, which pace a training loop."""
        grain, changed = "call", "parameter.data"
        matches = (
            member for member in self.rules if member.subject.grain == grain and member.property.object == changed
        )
        return tuple(sorted({rule.subject.api for rule in matches}))

    def saying(self, relation: str, subject: Subject, prop: Property) -> Iterator[Invariant]:
        """The rules with exactly this statement, by their ids."""
        return iter(self._saying.get((relation, subject, prop), ()))

    def implying(self, relation: str, subject: Subject, prop: Property) -> Iterator[Invariant]:
        """The rules whose statement implies this one, by their ids."""
        return iter(self._implying.get((relation, subject, prop), ()))

    def about(self, relation: str, subject: Subject) -> Iterator[Invariant]:
        """The rules about this subject, by their ids."""
        return iter(self._about.get((relation, subject), ()))

    def borne_out_under(self, other: Invariant, rule: Invariant) -> bool:
        """Whether `other` applies in every context that supported `rule`, and to the same programs at least."""
        contexts = self._seen.get(rule.id)
        return (
            bool(contexts)
            and _of_its_programs(other, rule)
            and no_less_severe(other, rule)
            and all(map(other.applies, contexts or ()))
        )


def first_covering(rule: Invariant, others: Iterable[Invariant]) -> Invariant | None:
    """The first of `others` that may replace `rule` if it says as much, see Note [Covering]."""
    return next((other for other in others if covers(other, rule)), None)


def covers(other: Invariant, rule: Invariant) -> bool:
    """Whether `other` may replace `rule` if it says as much, see Note [Covering]."""
    return reaches(other, rule) and no_less_severe(other, rule) and _has_experienced(other, rule)


def no_less_severe(other: Invariant, rule: Invariant) -> bool:
    """Whether a violation of `other` is reported no less severely than one of `rule`, also on other programs."""
    if other.severity not in (ERROR, rule.severity):
        return False
    if rule.elsewhere is None:
        return True
    return other.elsewhere is not None and other.elsewhere.severity in (ERROR, rule.elsewhere.severity)


def reaches(other: Invariant, rule: Invariant) -> bool:
    """Whether another rule is checked on every program that `rule` is, under no stronger condition."""
    return _of_its_programs(other, rule) and rule.precondition.implies(other.precondition)


def _of_its_programs(other: Invariant, rule: Invariant) -> bool:
    """Whether each program that supported `rule` supported `other`, and `other` is checked wherever `rule` is."""
    return other.id != rule.id and other.program in ("", rule.program) and set(rule.origin) <= set(other.origin)


def _has_experienced(other: Invariant, rule: Invariant) -> bool:
    """Whether `other` applies in all circumstances in which `rule` does."""
    clauses = set(rule.experience.clauses)
    return all(
        clause in clauses or rule.precondition.implies(Precondition((clause,))) for clause in other.experience.clauses
    )
