"""`traincheck infer`: learn a book of invariants from good runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from traincheck.cli import flags
from traincheck.cli.console import Progress, amount, columns, remark, say
from traincheck.errors import BookUnrecognised, NotABook, TrainCheckError

if TYPE_CHECKING:
    from traincheck.invariants.book import Book

EPILOG = """\b
Examples:
  traincheck infer runs/cnn runs/lstm runs/gpt -o good.jsonl
  traincheck infer runs/last-week -o pipeline.jsonl --journal why.jsonl

Several runs of different scripts give rules that transfer to others. `traincheck show BOOK` prints them,
`traincheck explain` says why a candidate was kept or dropped.
"""


def command(runs: flags.RunFolders, book: flags.BookFile, journal: flags.Journal = None) -> None:
    """Learn a book of invariants from good runs."""
    raise typer.Exit(infer(runs, book, journal))


def infer(runs: Sequence[Path], book: Path, journal: Path | None = None) -> int:
    """Learn from the run folders, write book and journal, and say what was learned."""
    refuse_other_files(book)

    from traincheck.inference.learn import learn
    from traincheck.invariants.book import write_book

    with Progress() as progress:
        learned = learn(runs, progress)
    journal = journal or Path(f"{book}.journal.jsonl")
    write_book(learned.book, book)
    learned.journal.write(journal)
    for line in summary(learned.book):
        say(line)
    remark(f"{amount(len(learned.book.invariants), 'invariant')} in {book} ({learned.seconds:.1f} s)")
    remark(f"why each candidate was kept or dropped: {journal}")
    return 0


def refuse_other_files(path: Path) -> None:
    """Raise NotABook for a file that is there and is not a book: it would be lost. A damaged book may be replaced."""
    from traincheck.invariants.book import read_book

    if not path.exists():
        return
    try:
        read_book(path)
    except BookUnrecognised as error:
        if path.is_dir() or (path.is_file() and path.stat().st_size):
            raise NotABook(path) from error
    except TrainCheckError:
        return


def summary(book: Book) -> list[str]:
    """How many invariants of each relation and severity there are, as lines of a table."""
    counts = Counter((invariant.relation, invariant.severity, invariant.scope) for invariant in book.invariants)
    rows = [
        (relation, severity, scope, f"{number:,}") for (relation, severity, scope), number in sorted(counts.items())
    ]
    return columns([("relation", "severity", "scope", "invariants"), *rows])
