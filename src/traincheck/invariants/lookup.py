"""Find the invariant of a book that a person names by its id, or by the first digits of it."""

from __future__ import annotations

import difflib
import os

from traincheck.errors import NoSuchInvariant
from traincheck.invariants.book import Book
from traincheck.vocab.invariant import Invariant

MAX_CANDIDATES = 3
"""Candidates that an error names."""


def invariant_by_id(book: Book, path: str | os.PathLike[str], name: str) -> Invariant:
    """The one invariant whose id begins with `name`.

    Raises NoSuchInvariant, which names `path` and similar rules: ids with the same start or a similar spelling, or
    rules whose sentence contains the word.
    """
    matching = [rule for rule in book.invariants if rule.id.startswith(name.strip().lower())] if name.strip() else []
    if len(matching) == 1:
        return matching[0]
    if matching:
        raise NoSuchInvariant(path, name, len(matching), _ids_and_sentences(matching))
    by_id = {rule.id: rule for rule in book.invariants}
    close = [by_id[rule_id] for rule_id in difflib.get_close_matches(name.lower(), by_id, MAX_CANDIDATES)]
    by_word = [rule for rule in book.invariants if name.strip() and name.strip().lower() in rule.sentence.lower()]
    raise NoSuchInvariant(path, name, 0, _ids_and_sentences(close or by_word))


def _ids_and_sentences(rules: list[Invariant]) -> list[tuple[str, str]]:
    return [(rule.id, rule.sentence) for rule in rules[:MAX_CANDIDATES]]
