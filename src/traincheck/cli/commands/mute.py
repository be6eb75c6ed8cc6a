"""`traincheck mute`: write into a book why some of its invariants are not to be checked."""

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

A muted invariant is not checked. It stays muted when `traincheck infer` writes the book anew.
"""


def command(book: flags.OneBook, ids: flags.Ids, reason: flags.Reason = None, unmute: flags.Unmute = False) -> None:
    """Mute invariants of a book, with the reason."""
    raise typer.Exit(mute(book, ids, reason, unmute))


def mute(path: Path, names: Sequence[str], reason: str | None, unmute: bool = False) -> int:
    """Mute the invariants, or unmute them; all of them or, where one of the ids is wrong, none."""
    from traincheck.invariants.book import read_book, write_book
    from traincheck.invariants.lookup import named
    from traincheck.invariants.mute import with_mutes

    if unmute and reason is not None:
        raise BadOption("--reason", reason, "either a reason to mute or --unmute, not both")
    if not unmute and not (reason or "").strip():
        raise BadOption("--reason", reason or "", "a text that says why: nobody remembers it later")
    book = read_book(path)
    chosen = {rule.id: rule for rule in (named(book, path, name) for name in names)}
    write_book(with_mutes(book, dict.fromkeys(chosen, "" if unmute else reason or "")), path)
    for rule in chosen.values():
        before = f" (the reason was: {rule.mute})" if rule.mute else " (it was not muted)" if unmute else ""
        out(f"{'checked again' if unmute else 'muted'}: {rule.id} {rule.sentence}{before}")
    return 0
