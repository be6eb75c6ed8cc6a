"""`traincheck show`: print the rules of a book."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from traincheck.cli import flags
from traincheck.cli.console import out_json

if TYPE_CHECKING:
    from traincheck.vocab.invariant import Invariant

PIPE_WIDTH = 200

EPILOG = """\b
Examples:
  traincheck show good.jsonl
  traincheck show good.jsonl --filter "error zero_grad"
  traincheck show good.jsonl --filter APISequence --json
"""


def command(
    book: flags.OneBook,
    text: flags.Text = None,
    as_json: flags.AsJson = False,
) -> None:
    """Print the rules of a book."""
    raise typer.Exit(show(book, text or "", as_json))


def show(path: Path, text: str = "", as_json: bool = False) -> int:
    """Print the rules of the book that contain every word of `text`."""
    from traincheck.invariants.book import read_book

    print_rules(read_book(path).invariants, text, as_json)
    return 0


def print_rules(rules: Sequence[Invariant], text: str, as_json: bool) -> None:
    """Print those of `rules` that contain every word of `text`."""
    from rich.console import Console

    from traincheck.reporting.book_view import book_data, book_view, selected

    matches = selected(rules, text)
    if as_json:
        out_json(book_data(matches))
    else:
        # A pipe has no width: do not break lines that a program may search.
        Console(highlight=False, width=None if sys.stdout.isatty() else PIPE_WIDTH).print(book_view(matches))
