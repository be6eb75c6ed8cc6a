"""`traincheck show`: read a book."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from traincheck.cli import flags
from traincheck.cli.console import out_json
from traincheck.errors import BadOption
from traincheck.options import OPTIONS

if TYPE_CHECKING:
    from traincheck.vocab.invariant import Invariant

PIPE_WIDTH = 200

EPILOG = """\b
Examples:
  traincheck show good.jsonl
  traincheck show good.jsonl --filter zero_grad --severity error
  traincheck show good.jsonl --relation APISequence --json
"""


def command(
    book: flags.OneBook,
    text: flags.Text = None,
    relation: flags.Relation = None,
    severity: flags.Severity = None,
    as_json: flags.AsJson = False,
) -> None:
    """Print the invariants of a book."""
    raise typer.Exit(show(book, text or "", relation or "", severity or "", as_json))


def show(path: Path, text: str = "", relation: str = "", severity: str = "", as_json: bool = False) -> int:
    """Print the invariants of the book that the filters leave."""
    from traincheck.invariants.book import read_book

    print_rules(read_book(path).invariants, text, relation, severity, as_json)
    return 0


def print_rules(rules: Sequence[Invariant], text: str, relation: str, severity: str, as_json: bool) -> None:
    """Print those of `rules` that the filters leave. Raises BadOption."""
    from rich.console import Console

    from traincheck.reporting.book_view import book_data, book_view, selected

    option = OPTIONS["severity"]
    if severity and severity not in option.choices:
        raise BadOption(option.flag, severity, option.expected)
    chosen = selected(rules, text=text, relation=relation, severity=severity)
    if as_json:
        out_json(book_data(chosen))
    else:
        # A pipe has no width: what is searched line by line should not be broken as for a small terminal.
        Console(highlight=False, width=None if sys.stdout.isatty() else PIPE_WIDTH).print(book_view(chosen))
