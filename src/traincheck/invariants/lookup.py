"""Lookup: the invariant of a book that a person means by an id, or by the first digits of one."""

from __future__ import annotations

import difflib
import os

from traincheck.errors import NoSuchInvariant
from traincheck.invariants.book import Book
from traincheck.vocab.invariant import Invariant

MOST_CANDIDATES = 3
"""Named in an error: a message is no list."""


def invariant_by_id(book: Book, path: str | os.PathLike[str], name: str) -> Invariant:
    """The one invariant whose id begins with `name`.

    Raises NoSuchInvariant, which names `path` and what may be meant: ids that begin so or look alike, or rules in whose
    sentence the word occurs.
    """
    matching = [rule for rule in book.invariants if rule.id.startswith(name.strip().lower())] if name.strip() else []
    if len(matching) == 1:
        return matching[0]
    if matching:
        raise NoSuchInvariant(path, name, len(matching), _ids_and_sentences(matching))
    by_id = {rule.id: rule for rule in book.invariants}
    close = [by_id[rule_id] for rule_id in difflib.get_close_matches(name.lower(), by_id, MOST_CANDIDATES)]
    by_word = [rule for rule in book.invariants if name.strip() and name.strip().lower() in rule.sentence.lower()]
    raise NoSuchInvariant(path, name, 0, _ids_and_sentences(close or by_word))


def _ids_and_sentences(rules: list[Invariant]) -> list[tuple[str, str]]:
    return [(rule.id, rule.sentence) for rule in rules[:MOST_CANDIDATES]]
