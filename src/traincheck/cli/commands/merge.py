"""`traincheck merge`: one book of several, or one tally file of several."""

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

Of a rule that stands in several books the one with the greater support is kept; a mute in any of them stays. Merged
books say no more than each of them did: to learn from all the runs together, merge their tallies (or name them all) and
call `traincheck infer`. A run that several tally files hold counts once.
"""


def command(files: flags.Files, out: flags.MergedFile) -> None:
    """Make one book of several, or one tally file of several."""
    raise typer.Exit(merge(files, out))


def merge(files: Sequence[Path], out: Path) -> int:
    """Merge the files, which are all books or all tally files."""
    from traincheck.inference.tally_files import is_tally_file

    tallies: list[Path] = []
    books: list[Path] = []
    for file in files:
        if file.is_dir():
            raise BadOption("merge", str(file), "books or tally files; of a run folder, infer makes either")
        if not file.exists():
            raise BookNotFound(file)
        (tallies if is_tally_file(file) else books).append(file)
    if tallies and books:
        cure = f"learn a book first: traincheck infer {tallies[0]} -o BOOK"
        raise BadOption("merge", f"{books[0]} {tallies[0]}", f"only books or only tally files; {cure}")
    return merge_tallies(tallies, out) if tallies else merge_books(books, out)


def merge_books(files: Sequence[Path], out: Path) -> int:
    """One book of several."""
    from traincheck.invariants.book import read_books

    output_files.may_replace_book(out)
    book = output_files.replace_book(read_books(files), out)
    remark(f"{amount(len(book.invariants), 'invariant')} of {amount(len(files), 'book')} in {out}")
    return 0


def merge_tallies(files: Sequence[Path], out: Path) -> int:
    """One tally file of several."""
    from traincheck.inference.tally_runs import gather

    output_files.may_replace_tally(out, "-o")
    gathered = gather(files)
    for line in gathered.remarks:
        remark(line)
    write_tally(gathered.tallies, out)
    return 0
