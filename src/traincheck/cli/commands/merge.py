"""`traincheck merge`: merge several books into one, or several tally files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import typer

from traincheck.cli import flags, output_files
from traincheck.cli.commands.infer import write_tally
from traincheck.cli.console import amount, remark
from traincheck.errors import BadOption, BookNotFound

EPILOG = """\b
Examples:
  traincheck merge good.jsonl pipeline.jsonl -o both.jsonl
  traincheck merge monday.tally tuesday.tally -o week.tally

If several books hold a rule, TrainCheck keeps the one with the greatest support, and a mute from any of them. A merged
book has no new rules: to learn from all runs together, merge their tallies and call `traincheck infer`. A run in
several tally files counts once.
"""


def command(files: flags.Files, out: flags.MergedFile) -> None:
    """Merge several books into one, or several tally files."""
    raise typer.Exit(merge(files, out))


def merge(files: Sequence[Path], out: Path) -> int:
    """Merge the files, which are all books or all tally files."""
    from traincheck.inference.tally_files import is_tally_file

    tallies: list[Path] = []
    books: list[Path] = []
    for file in files:
        if file.is_dir():
            raise BadOption(
                "merge", str(file), "books or tally files, which `traincheck infer` makes from a run folder"
            )
        if not file.exists():
            raise BookNotFound(file)
        (tallies if is_tally_file(file) else books).append(file)
    if tallies and books:
        cure = f"learn a book first: traincheck infer {tallies[0]} -o BOOK"
        raise BadOption("merge", f"{books[0]} {tallies[0]}", f"only books or only tally files; {cure}")
    return merge_tallies(tallies, out) if tallies else merge_books(books, out)


def merge_books(files: Sequence[Path], out: Path) -> int:
    """Merge books."""
    from traincheck.invariants.book import read_books

    output_files.may_replace_book(out)
    book = output_files.replace_book(read_books(files), out)
    remark(f"{amount(len(book.invariants), 'invariant')} of {amount(len(files), 'book')} in {out}")
    return 0


def merge_tallies(files: Sequence[Path], out: Path) -> int:
    """Merge tally files."""
    from traincheck.inference.tally_runs import gather

    output_files.may_replace_tally(out, "-o")
    gathered = gather(files)
    for line in gathered.remarks:
        remark(line)
    write_tally(gathered.tallies, out)
    return 0
