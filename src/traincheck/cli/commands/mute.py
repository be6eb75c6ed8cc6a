"""`traincheck mute`: mute rules of a book, with the reason."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import typer

from traincheck.cli import flags
from traincheck.cli.console import out
from traincheck.errors import BadOption

EPILOG = """\b
Examples:
  traincheck mute good.jsonl 3f9a0c11d2 --reason "we accumulate over 8 batches on purpose"
  traincheck mute good.jsonl 3f9a 51bc --reason "the adapter is zero at first"
  traincheck mute good.jsonl 3f9a0c11d2 --unmute

TrainCheck does not check a muted rule. It stays muted when `traincheck infer` replaces the book.
"""


def command(
    book: flags.OneBook, ids: flags.Ids, reason: flags.ReasonMuted = None, unmute: flags.Unmute = False
) -> None:
    """Mute rules of a book, with the reason."""
    raise typer.Exit(mute(book, ids, reason, unmute))


def mute(path: Path, names: Sequence[str], reason: str | None, unmute: bool = False) -> int:
    """Mute or unmute the rules: all of them, or none if an id is wrong."""
    from traincheck.invariants.book import read_book, write_book
    from traincheck.invariants.lookup import invariant_by_id
    from traincheck.invariants.mute import with_mutes

    if unmute and reason is not None:
        raise BadOption("--reason", reason, "either a reason to mute or --unmute, not both")
    if not unmute and not (reason or "").strip():
        raise BadOption("--reason", reason or "", "a text that gives the reason, for later readers")
    book = read_book(path)
    rules = {rule.id: rule for rule in (invariant_by_id(book, path, name) for name in names)}
    write_book(with_mutes(book, dict.fromkeys(rules, "" if unmute else reason or "")), path)
    for rule in rules.values():
        before = f" (the reason was: {rule.mute})" if rule.mute else " (it was not muted)" if unmute else ""
        out(f"{'checked again' if unmute else 'muted'}: {rule.id} {rule.sentence}{before}")
    return 0
