"""The journal: why each candidate lived or died, for `traincheck explain`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import msgspec

from traincheck.errors import OutputError

KEPT, DROPPED = "kept", "dropped"


class Entry(msgspec.Struct, frozen=True):
    """One candidate: what it says, what became of it and why."""

    relation: str
    sentence: str
    precondition: str
    fate: str
    why: str
    runs: int
    steps: int
    held: int
    failed: int
    id: str = ""

    def __str__(self) -> str:
        condition = "" if self.precondition == "always" else f", when {self.precondition}"
        name = f" [{self.id}]" if self.id else ""
        return (
            f"{self.fate}: {self.sentence}{condition}{name}\n"
            f"    {self.why}\n"
            f"    {self.relation}; held {self.held} times, failed {self.failed} times; "
            f"{self.steps} training steps in {self.runs} run(s)"
        )


class Journal:
    """All entries of one inference."""

    def __init__(self, entries: Iterable[Entry] = ()) -> None:
        self.entries = list(entries)

    def add(self, entry: Entry) -> None:
        self.entries.append(entry)

    def write(self, path: Path) -> None:
        """Write one JSON line for each entry. Raises OutputError."""
        try:
            path.write_bytes(b"".join(msgspec.json.encode(entry) + b"\n" for entry in self.entries))
        except OSError as error:
            raise OutputError(path, error.strerror or str(error)) from error

    def find(self, text: str, most: int = 10) -> list[Entry]:
        """The entries that share most words with `text`, best first; kept ones first among equals."""
        wanted = _words(text)
        scored = []
        for entry in self.entries:
            words = _words(f"{entry.sentence} {entry.id} {entry.relation}")
            shared = len(wanted & words)
            if shared:
                scored.append((-shared, entry.fate != KEPT, len(words), entry.sentence, entry))
        scored.sort(key=lambda row: row[:4])
        return [row[-1] for row in scored[:most] if -row[0] * 2 >= len(wanted)]


_SYNONYMS = {"gradient": "grad", "reset": "clear", "zeroed": "clear", "cleared": "clear", "parameters": "parameter"}


def _words(text: str) -> set[str]:
    """The words of a text, lower case, without plurals, so that "gradients" finds "gradient"."""
    found = set()
    for word in re.findall(r"[a-z0-9]+", text.lower()):
        stem = word[:-1] if len(word) > 3 and word.endswith("s") else word
        found.add(_SYNONYMS.get(stem, stem))
    return found
