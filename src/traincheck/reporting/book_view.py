"""Print a book for `traincheck show`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from traincheck.reporting import phrases
from traincheck.vocab.invariant import ERROR, Conjunction, Invariant


def selected(invariants: Iterable[Invariant], text: str = "") -> tuple[Invariant, ...]:
    """Return the invariants that contain every word of `text`, in their order.

    TrainCheck searches the id, the sentence, relation and severity, subject and property, the precondition, the scripts
    and the mute, in upper and lower case.
    """
    words = text.lower().split()
    return tuple(invariant for invariant in invariants if all(word in _searched_text(invariant) for word in words))


def _searched_text(rule: Invariant) -> str:
    words = (rule.id, rule.sentence, rule.relation, rule.severity, *rule.subject, *rule.property)
    return "\n".join((*words, str(rule.precondition), *rule.origin, rule.mute)).lower()


def book_data(invariants: Iterable[Invariant]) -> list[dict[str, object]]:
    """Return the invariants as plain data, with the keys of a book file."""
    return [
        {
            "id": rule.id,
            "relation": rule.relation,
            "subject": rule.subject._asdict(),
            "property": rule.property._asdict(),
            "precondition": _conjunction_data(rule.precondition.clauses),
            "otherwise": [_conjunction_data(clauses) for clauses in rule.precondition.otherwise],
            "support": {
                "occasions": rule.support.occasions,
                "steps": rule.support.steps,
                "runs": rule.support.runs,
                "scripts": rule.support.scripts,
            },
            "confidence": rule.confidence,
            "severity": rule.severity,
            "scope": rule.scope,
            "origin": list(rule.origin),
            "sentence": rule.sentence,
            "mute": rule.mute,
        }
        for rule in invariants
    ]


def _conjunction_data(clauses: Conjunction) -> list[dict[str, object]]:
    return [{"fact": clause.fact, clause.verb: clause.value} for clause in clauses]


def book_view(invariants: Sequence[Invariant]) -> RenderableType:
    """Return the invariants for people: by relation, then by subject, each with a sentence and its support."""
    if not invariants:
        return Text("No invariant fits.", "yellow")
    parts: list[RenderableType] = []
    ordered = sorted(invariants, key=lambda rule: (rule.relation, rule.subject))
    for relation, of_relation in groupby(ordered, key=lambda rule: rule.relation):
        group = list(of_relation)
        count = phrases.number(len(group), "invariant")
        parts.append(Text.assemble((phrases.plain(relation), "bold underline"), (f"  {count}", "dim")))
        for subject, of_subject in groupby(group, key=lambda rule: rule.subject):
            grain = "" if subject.grain == "call" else f", each {subject.grain}"
            parts.append(Padding(Text(phrases.plain(subject.api + grain), "bold cyan"), (1, 0, 0, 2)))
            parts.append(Padding(_entries(list(of_subject)), (0, 0, 0, 4)))
        parts.append(Text(""))
    return Group(*parts, _total(invariants))


def _entries(invariants: Sequence[Invariant]) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for rule in invariants:
        style = "dim" if rule.mute else "bold red" if rule.severity == ERROR else "yellow"
        table.add_row(Text(rule.id, "dim"), Text("muted" if rule.mute else rule.severity, style), _entry(rule))
    return table


def _entry(rule: Invariant) -> Text:
    lines = [Text(phrases.plain(rule.sentence))]
    if rule.precondition.clauses:
        lines.append(Text(phrases.plain(f"when {rule.precondition}")))
    rests = f"{rule.scope}, {phrases.support(rule.support)}, confidence {phrases.confidence(rule.confidence)}"
    lines.append(Text(rests, "dim"))
    if rule.mute:
        lines.append(Text(phrases.plain(f"muted: {rule.mute}"), "italic"))
    return Text("\n").join(lines)


def _total(invariants: Sequence[Invariant]) -> Text:
    errors = sum(rule.severity == ERROR for rule in invariants)
    muted = sum(bool(rule.mute) for rule in invariants)
    parts = [phrases.number(len(invariants), "invariant"), phrases.number(errors, "error")]
    parts += [phrases.number(len(invariants) - errors, "notice"), *([f"{muted:,} muted"] if muted else [])]
    return Text(", ".join(parts), "dim")
