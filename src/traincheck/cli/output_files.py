"""Protects existing files: checks what a command may replace, and keeps the mutes of a replaced book."""

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
    """Raise OtherFile for an existing file that is not a book. A damaged book may be replaced."""
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
    """Raise OtherFile for an existing file, or a folder with other contents than packs."""
    from traincheck.invariants.packs import MANIFEST

    if folder.is_dir() and ((folder / MANIFEST).is_file() or not any(folder.iterdir())):
        return
    if folder.exists():
        raise OtherFile(folder, "a folder of packs", "-o")


def may_replace_tally(path: Path, option: str) -> None:
    """Raise OtherFile for an existing file that is not a tally file."""
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
    """Raise OtherFile for an existing file that is not a journal."""
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
    """Write `book` to `path` with the mutes of an older book there, and report them; the written book.

    It renames a damaged older book, whose mutes cannot be read. Raises OutputError.
    """
    from traincheck.invariants.book import read_book, write_book
    from traincheck.invariants.mute import carry_over

    try:
        older = read_book(path)
    except (BookNotFound, BookUnrecognised):
        write_book(book, path)
        return book
    except TrainCheckError as error:
        _keep_backup(path, error)
        write_book(book, path)
        return book
    book, kept, lost = carry_over(book, older.invariants)
    write_book(book, path)
    if kept:
        remark(f"{amount(len(kept), 'mute')} of the older {path} stayed: {', '.join(rule.id for rule in kept)}")
    for rule in lost:
        remark(f"the muted {rule.id} ({rule.sentence}) is not in the new book; its reason was: {rule.mute}")
    return book


def _keep_backup(path: Path, error: TrainCheckError) -> None:
    number = 0
    backup = path.with_name(f"{path.name}.old")
    while backup.exists():
        number += 1
        backup = path.with_name(f"{path.name}.old{number}")
    try:
        path.rename(backup)
    except OSError as failure:
        raise OutputError(backup, failure.strerror or str(failure)) from failure
    remark(f"the older book cannot be read, so its mutes are lost; it is now {backup} ({error.slug})")
