"""Compare two books: the rules that only one of them has, and those that rest on other evidence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from traincheck.invariants.book import Book, LearnedRun
from traincheck.vocab.invariant import Invariant
from traincheck.vocab.properties import elements_of


@dataclass(frozen=True, slots=True)
class Changed:
    """A rule of both books that differs between them. `fields` names the differences.

    If only the condition differs, the ids differ too; it still counts as one changed rule, not as one removed and one
    added.
    """

    a: Invariant
    b: Invariant
    fields: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Difference:
    """The differences of two books, all in the order of the books."""

    only_in_a: tuple[Invariant, ...]
    only_in_b: tuple[Invariant, ...]
    changed: tuple[Changed, ...]
    same: int
    runs_only_in_a: tuple[LearnedRun, ...] = ()
    runs_only_in_b: tuple[LearnedRun, ...] = ()

    @property
    def empty(self) -> bool:
        """Whether the books have the same rules, with the same evidence."""
        rules = self.only_in_a or self.only_in_b or self.changed
        return not (rules or self.runs_only_in_a or self.runs_only_in_b)


CONDITION, EXPERIENCE = "condition", "experience"
SEVERITY, CONFIDENCE, SCOPE, SUPPORT, ORIGIN, MUTE = "severity", "confidence", "scope", "support", "origin", "mute"
COMPARED = (SEVERITY, MUTE, SCOPE, CONFIDENCE, SUPPORT, ORIGIN)
"""Fields that may differ in a rule of one id, the most important first; the condition is part of the id."""


def compare(a: Book, b: Book) -> Difference:
    """The differences between the books."""
    in_a, in_b = ({rule.id: rule for rule in book.invariants} for book in (a, b))
    gone = [rule for rule in a.invariants if rule.id not in in_b]
    new = [rule for rule in b.invariants if rule.id not in in_a]
    pairs = [(rule, in_b[rule.id]) for rule in a.invariants if rule.id in in_b]
    reworded = _reworded(gone, new)
    changed = [Changed(*pair, fields) for pair in [*pairs, *reworded] if (fields := _changed_fields(*pair))]
    position = {rule.id: number for number, rule in enumerate(a.invariants)}
    changed.sort(key=lambda change: position[change.a.id])
    left, right = Counter(a.runs), Counter(b.runs)
    paired = {rule.id for pair in reworded for rule in pair}
    return Difference(
        tuple(rule for rule in gone if rule.id not in paired),
        tuple(rule for rule in new if rule.id not in paired),
        tuple(changed),
        len(pairs) + len(reworded) - len(changed),
        tuple(sorted((left - right).elements())),
        tuple(sorted((right - left).elements())),
    )


class ChangedSet(NamedTuple):
    """A rule about a set that allows or requires other elements than before, by their details."""

    before: Invariant
    after: Invariant
    new: tuple[str, ...]
    no_longer_required: tuple[str, ...]


def changed_sets(difference: Difference) -> Iterator[ChangedSet]:
    """The rules about sets that only the first book has, each with its counterpart in the second one. Rules without a
    counterpart are left out."""
    after = {_statement(rule): rule for rule in difference.only_in_b}
    for rule in difference.only_in_a:
        counterpart = after.get(_statement(rule), rule)
        was, now = elements_of(rule.property), elements_of(counterpart.property)
        if counterpart is not rule and was is not None and now is not None:
            changes = now.allowed - was.allowed, was.required - now.required
            yield ChangedSet(rule, counterpart, *(tuple(sorted(prop.detail for prop in props)) for props in changes))


def _statement(rule: Invariant) -> tuple[object, ...]:
    return rule.relation, rule.subject, rule.property.verb, rule.program


def _changed_fields(a: Invariant, b: Invariant) -> tuple[str, ...]:
    fields = [CONDITION] if a.id != b.id else []
    fields += [EXPERIENCE] if str(a.experience) != str(b.experience) else []
    fields += [name for name in COMPARED if getattr(a, name) != getattr(b, name)]
    return tuple(fields)


def _reworded(gone: Iterable[Invariant], new: Iterable[Invariant]) -> list[tuple[Invariant, Invariant]]:
    """Rules with the same statement under another condition, if there is one on either side."""
    left, right = _by_statement(gone), _by_statement(new)
    return [
        (rules[0], right[statement][0])
        for statement, rules in left.items()
        if len(rules) == 1 and len(right.get(statement, ())) == 1
    ]


def _by_statement(rules: Iterable[Invariant]) -> dict[tuple[object, ...], list[Invariant]]:
    rules_by_statement: dict[tuple[object, ...], list[Invariant]] = {}
    for rule in rules:
        rules_by_statement.setdefault((rule.relation, rule.subject, rule.property, rule.program), []).append(rule)
    return rules_by_statement
