"""Mute a rule: write a reason into a book why one of its invariants is not checked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from traincheck.invariants.book import Book
from traincheck.vocab.invariant import Invariant


def with_mutes(book: Book, reasons: Mapping[str, str]) -> Book:
    """`book` with these reasons by id; an empty one unmutes. Raises KeyError for an id that is not in the book."""
    for name in reasons:
        if book.by_id(name) is None:
            raise KeyError(name)
    one_line_reasons = {name: " ".join(reason.split()) for name, reason in reasons.items()}  # a reason is one line
    rules = (replace(rule, mute=one_line_reasons.get(rule.id, rule.mute)) for rule in book.invariants)
    return Book(tuple(rules), book.runs)


def carry_over(book: Book, older: Iterable[Invariant]) -> tuple[Book, list[Invariant], list[Invariant]]:
    """`book` with the mutes of the rules that it replaces; the muted rules that it has, and those that it lacks.

    A reason that was given once holds for the rule, not for one file.
    """
    muted = {rule.id: rule for rule in older if rule.mute}
    here = {rule.id for rule in book.invariants if rule.id in muted}
    reasons = {name: muted[name].mute for name in here if not (book.by_id(name) or muted[name]).mute}
    kept = [rule for name, rule in sorted(muted.items()) if name in here]
    lost = [rule for name, rule in sorted(muted.items()) if name not in here]
    return with_mutes(book, reasons), kept, lost
