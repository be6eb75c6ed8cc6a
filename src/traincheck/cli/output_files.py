"""Outputs: what a command may replace, and what of an older book goes on into the one that replaces it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from traincheck.cli.console import amount, remark
from traincheck.errors import (
    BookNotFound,
    BookUnrecognised,
    JournalUnreadable,
    OtherFile,
    OutputError,
    TallyUnreadable,
    TrainCheckError,
)

if TYPE_CHECKING:
    from traincheck.invariants.book import Book


def may_replace_book(path: Path) -> None:
    """Raise OtherFile for a file that is there and is not a book: it would be lost. A damaged book may be replaced."""
    from traincheck.invariants.book import read_book

    if not path.exists():
        return
    try:
        read_book(path)
    except BookUnrecognised as error:
        if path.is_dir() or (path.is_file() and path.stat().st_size):
            raise OtherFile(path, "a book of invariants", "-o") from error
    except TrainCheckError:
        return


def may_hold_packs(folder: Path) -> None:
    """Raise OtherFile for a folder that is there and holds something else than packs, or a file."""
    from traincheck.invariants.packs import MANIFEST

    if folder.is_dir() and ((folder / MANIFEST).is_file() or not any(folder.iterdir())):
        return
    if folder.exists():
        raise OtherFile(folder, "a folder of packs", "-o")


def may_replace_tally(path: Path, option: str) -> None:
    """Raise OtherFile for a file that is there and holds no tallies."""
    from traincheck.inference.tally_files import is_tally_file

    if not _holds_something(path):
        return
    try:
        ours = is_tally_file(path)
    except TallyUnreadable:
        ours = False
    if not ours:
        raise OtherFile(path, "a tally file", option)


def may_replace_journal(path: Path, option: str) -> None:
    """Raise OtherFile for a file that is there and is not a journal."""
    from traincheck.inference.journal import is_journal

    if not _holds_something(path):
        return
    try:
        ours = is_journal(path)
    except JournalUnreadable:
        ours = False
    if not ours:
        raise OtherFile(path, "a journal", option)


def _holds_something(path: Path) -> bool:
    # Neither an empty file nor a device such as /dev/null has anything to lose.
    return path.is_dir() or (path.is_file() and path.stat().st_size > 0)


def replace_book(book: Book, path: Path) -> Book:
    """Write `book` to `path` with the mutes of an older book there, and say what became of them; what was written.

    A damaged older book, whose mutes cannot be read, is kept beside it. Raises OutputError.
    """
    from traincheck.invariants.book import read_book, write_book
    from traincheck.invariants.mute import carry_over

    try:
        older = read_book(path)
    except (BookNotFound, BookUnrecognised):
        write_book(book, path)
        return book
    except TrainCheckError as error:
        _keep_aside(path, error)
        write_book(book, path)
        return book
    book, kept, lost = carry_over(book, older.invariants)
    write_book(book, path)
    if kept:
        remark(f"{amount(len(kept), 'mute')} of the older {path} stayed: {', '.join(rule.id for rule in kept)}")
    for rule in lost:
        remark(f"the muted {rule.id} ({rule.sentence}) is not in the new book; its reason was: {rule.mute}")
    return book


def _keep_aside(path: Path, error: TrainCheckError) -> None:
    number = 0
    aside = path.with_name(f"{path.name}.old")
    while aside.exists():
        number += 1
        aside = path.with_name(f"{path.name}.old{number}")
    try:
        path.rename(aside)
    except OSError as why:
        raise OutputError(aside, why.strerror or str(why)) from why
    remark(f"the older book cannot be read, so its mutes were not kept; it is now {aside} ({error.slug})")
