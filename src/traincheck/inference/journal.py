"""The journal: why each candidate was kept or dropped, for `traincheck explain`."""

from __future__ import annotations

import math
import os
import re
from collections import Counter
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

import msgspec

from traincheck.errors import JournalUnreadable
from traincheck.files import read_bounded, write_whole

KEPT, DROPPED = "kept", "dropped"

FORMAT = 1
"""Format of a journal. 1 (0.1.0): JSON Lines, a header with kind and format, then one `Entry` to a line."""

KIND = "traincheck journal"


class Entry(msgspec.Struct, frozen=True, rename={"outcome": "fate", "reason": "why"}):
    """One candidate: its sentence, its outcome and the reason. In a file, these two are called `fate` and `why`."""

    relation: str
    sentence: str
    precondition: str
    outcome: str
    reason: str
    runs: int
    steps: int
    held: int
    failed: int
    id: str = ""

    def __str__(self) -> str:
        condition = "" if self.precondition == "always" else f", when {self.precondition}"
        name = f" [{self.id}]" if self.id else ""
        return (
            f"{self.outcome}: {self.sentence}{condition}{name}\n"
            f"    {self.reason}\n"
            f"    {self.relation}; held {self.held} times, failed {self.failed} times; "
            f"{self.steps} training steps in {self.runs} run(s)"
        )


class _Header(msgspec.Struct, frozen=True):
    kind: str = ""
    format: int = 0


class Journal:
    """All entries of one inference."""

    def __init__(self, entries: Iterable[Entry] = ()) -> None:
        self.entries = list(entries)

    def add(self, entry: Entry) -> None:
        self.entries.append(entry)

    def write(self, path: Path) -> None:
        """Write a header and one JSON line for each entry, all or nothing. Raises OutputError."""
        write_whole(path, msgspec.json.Encoder().encode_lines([_Header(KIND, FORMAT), *self.entries]))

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Journal:
        """The journal in the file `path`. Raises JournalUnreadable."""
        try:
            first, _, rest = read_bounded(path).partition(b"\n")
        except OSError as error:
            raise JournalUnreadable(path, error.strerror or str(error)) from error
        if not _is_header(first):
            raise JournalUnreadable(path, "its first line is not the header of one")
        if msgspec.json.decode(first, type=_Header).format > FORMAT:
            raise JournalUnreadable(path, "a newer TrainCheck wrote it")
        try:
            return cls(msgspec.json.Decoder(Entry).decode_lines(rest))
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
            raise JournalUnreadable(path, f"a line of it is no entry ({error})") from error

    def find(self, text: str, most: int = 10) -> list[Entry]:
        """The entries that share at least half of their words with `text`, best first; kept ones first among equals.

        A word counts more if fewer entries have it. Forms of a word and a few synonyms are one word (see `words`).
        """
        query = words(text)
        entry_words = [(entry, words(f"{entry.sentence} {entry.id} {entry.relation}")) for entry in self.entries]
        common = Counter(word for _, entry_vocabulary in entry_words for word in entry_vocabulary & query)
        weights = {word: math.log(1 + len(entry_words) / number) for word, number in common.items()}
        scored = []
        for entry, entry_vocabulary in entry_words:
            shared = entry_vocabulary & query
            if shared and 2 * len(shared) >= len(query):
                weight = sum(weights[word] for word in sorted(shared))  # in one order: sums of floats depend on it
                scored.append(
                    (-weight, entry.outcome != KEPT, len(entry_vocabulary), entry.sentence, entry.precondition, entry)
                )
        scored.sort(key=lambda row: row[:5])
        return [row[-1] for row in scored[:most]]


def is_journal(path: Path) -> bool:
    """Whether the file starts as a journal does. Raises JournalUnreadable for one that cannot be read at all."""
    try:
        with path.open("rb") as file:
            return _is_header(file.readline(1 << 12).rstrip(b"\n"))
    except OSError as error:
        raise JournalUnreadable(path, error.strerror or str(error)) from error


def _is_header(line: bytes) -> bool:
    try:
        return msgspec.json.decode(line, type=_Header).kind == KIND
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return False


# -- words -----------------------------------------------------------------------------------------------------------

_WORD = re.compile(r"\b[0-9a-f]{10}\b|[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_FILLERS = frozenset(("a", "an", "and", "by", "in", "is", "it", "of", "or", "some", "that", "the", "to", "when"))
_SYNONYMS = {
    "gradient": "grad",
    "reset": "clear",
    "wip": "clear",
    "zeroed": "clear",
    "weight": "parameter",
    "param": "parameter",
    "updat": "chang",
    "modify": "chang",
    "modifi": "chang",
    "optimiser": "optimizer",
    "backprop": "backward",
    "evaluation": "eval",
    "evaluat": "eval",
}
"""Stems of words that people use in place of those of our sentences."""


def words(text: str) -> set[str]:
    """The words of a text without fillers, each by its stem, so that "resets gradients" finds "the grad is cleared"."""
    return {stem for word in _WORD.findall(text) if (stem := _stem(word)) not in _FILLERS}


@lru_cache(maxsize=10_000)
def _stem(word: str) -> str:
    word = word.lower()
    if word in _SYNONYMS or word.isdigit() or len(word) <= 3:
        return _SYNONYMS.get(word, word)
    for ending in ("ing", "ed", "s"):
        if word.endswith(ending) and len(word) - len(ending) >= 3 and not word.endswith("ss"):
            word = word.removesuffix(ending)
            break
    word = word.removesuffix("e")
    if len(word) > 3 and word[-1] == word[-2]:  # stopped is a form of stop
        word = word[:-1]
    return _SYNONYMS.get(word, word)
