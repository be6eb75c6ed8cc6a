"""Checks a recorded run folder, without torch and without the program."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from traincheck.checking.engine import Engine, Outcome
from traincheck.checking.rank_comparison import compare_recorded
from traincheck.checking.rank_states import recorded_ranks
from traincheck.checking.results import (
    CheckResult,
    combine,
    cost_of,
    recorded_demand,
    run_facts,
    unobserved,
    verification_of,
)
from traincheck.errors import RunFolderEmpty
from traincheck.invariants.book import Book
from traincheck.invariants.selection import deployable
from traincheck.trace.folder import RunFolder

Progress = Callable[[str, int, int], None]


def check_folder(folder: Path, book: Book, progress: Progress | None = None) -> CheckResult:
    """Check every process of a run folder against `book`.

    Raises RunFolderError for a folder that cannot be read or holds no window.
    """
    return check_folder_against(folder, [book], progress)[0]


def check_folder_against(folder: Path, books: Sequence[Book], progress: Progress | None = None) -> list[CheckResult]:
    """The result of `check_folder` for each of `books`; the folder is read once."""
    run = RunFolder.open(folder)
    deployed = [deployable(book.invariants, run.manifest.script) for book in books]
    outcomes: list[list[Outcome]] = [[] for _ in books]
    files = len(run.event_files())
    for number, (_, windows) in enumerate(run.windows()):
        if progress:
            progress(f"checking {folder}", number, files)
        engines = [Engine(rules) for rules in deployed]
        for window in windows:
            for engine in engines:
                engine.outcome.rank, engine.outcome.process = window.rank, window.process
                engine.feed(window)
        for engine, of_book in zip(engines, outcomes, strict=True):
            if engine.outcome.windows:
                of_book.append(engine.outcome)
    if not all(outcomes):
        raise RunFolderEmpty(folder, "no window was recorded")
    comparisons = compare_recorded(run, deployed)
    notes, removed = run.notes(), run.removed()
    ranks = recorded_ranks(run, notes)
    return [
        combine(
            book,
            rules,
            of_book,
            unobserved=unobserved(rules, recorded_demand(run), notes),
            not_observed=[*(reason for note in notes for reason in note.not_observed), *removed],
            dropped=sum(note.dropped for note in notes),
            run=run_facts(run, notes),
            comparisons=of_ranks,
            ranks=ranks,
            cost=cost_of(notes),
            verification=verification_of(notes),
        )
        for book, rules, of_book, of_ranks in zip(books, deployed, outcomes, comparisons, strict=True)
    ]
