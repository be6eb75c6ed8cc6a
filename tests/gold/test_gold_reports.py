"""Gold files pin the text of reports and books. A change of looks shows in review as a diff."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console, RenderableType

from traincheck.invariants.book import Book, LearnedRun, write_book
from traincheck.reporting.book_view import book_view
from traincheck.reporting.json_report import json_of
from traincheck.reporting.terminal import TerminalSink
from traincheck.version import __version__
from traincheck.vocab.finding import Report
from traincheck.vocab.invariant import Invariant

Gold = Callable[[str, str], None]


class Screen:
    """A console of a fixed width, and the text on it without what the version changes."""

    def __init__(self, width: int) -> None:
        self._text = io.StringIO()
        self.console = Console(file=self._text, width=width, highlight=False, color_system=None)

    def __str__(self) -> str:
        lines = self._text.getvalue().replace(__version__, "VERSION").splitlines()
        return "".join(line.rstrip() + "\n" for line in lines)


@pytest.mark.parametrize("width", [80, 120])
def test_terminal(some_report: Report, gold: Gold, folder: Path, width: int) -> None:
    screen = Screen(width)
    sink = TerminalSink(screen.console, ["runs/one/report.html", "runs/one/report.json"])
    sink.open(some_report.run)
    for finding in some_report.findings:
        sink.show(finding)
    sink.close(some_report)
    gold(f"terminal_{width}.txt", str(screen))


def test_terminal_of_a_clean_run(clean_report: Report, gold: Gold) -> None:
    screen = Screen(80)
    TerminalSink(screen.console).close(clean_report)
    gold("terminal_clean.txt", str(screen))


def test_json(some_report: Report, gold: Gold) -> None:
    gold("report.json", json_of(some_report))


def test_book_view(some_invariants: tuple[Invariant, ...], gold: Gold) -> None:
    screen = Screen(100)
    view: RenderableType = book_view(some_invariants)
    screen.console.print(view)
    gold("book_view.txt", str(screen))


def test_book(some_invariants: tuple[Invariant, ...], gold: Gold, tmp_path: Path) -> None:
    write_book(Book(some_invariants, (LearnedRun("mnist.py", "1f2e3d", 300),)), tmp_path / "book")
    gold("book.jsonl", (tmp_path / "book").read_text(encoding="utf-8").replace(__version__, "VERSION"))
