"""The offline driver: check a recorded run folder. Torch is not needed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from traincheck.checking.checked import Checked, conclude
from traincheck.checking.engine import Engine, Outcome, demand_of
from traincheck.checking.rank_states import recorded_ranks
from traincheck.checking.ranks import compare_recorded
from traincheck.errors import InputError, RunFolderEmpty
from traincheck.invariants.book import Book, read_book
from traincheck.invariants.selection import deployable
from traincheck.trace.folder import RunFolder
from traincheck.trace.notes import ProcessNote
from traincheck.vocab.demand import EVERYTHING, Demand
from traincheck.vocab.invariant import Invariant

Progress = Callable[[str, int, int], None]

BOOK_FILE = "book.jsonl"
"""The book that a run was checked live against, kept in its run folder: what was observed follows from it."""


def check_folder(folder: Path, book: Book, progress: Progress | None = None) -> Checked:
    """Check every process of a run folder against `book`.

    Raises RunFolderError for a folder that cannot be read or holds no window.
    """
    return check_folder_against(folder, [book], progress)[0]


def check_folder_against(folder: Path, books: Sequence[Book], progress: Progress | None = None) -> list[Checked]:
    """What `check_folder` says for each of `books`; the folder is read once."""
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
        for engine, found in zip(engines, outcomes, strict=True):
            if engine.outcome.windows:
                found.append(engine.outcome)
    if not all(outcomes):
        raise RunFolderEmpty(folder, "no window was recorded")
    compared = compare_recorded(run, deployed)
    notes = run.notes()
    ranks = recorded_ranks(run, notes)
    return [
        conclude(
            book,
            rules,
            found,
            unobserved=unobserved(rules, recorded_demand(run), notes),
            not_observed=[reason for note in notes for reason in note.not_observed],
            dropped=sum(note.dropped for note in notes),
            run=run_facts(run, notes),
            compared=of_ranks,
            ranks=ranks,
        )
        for book, rules, found, of_ranks in zip(books, deployed, outcomes, compared, strict=True)
    ]


def recorded_demand(run: RunFolder) -> Demand:
    """What was asked of the sources when the run was recorded."""
    if run.manifest.mode == "collect":
        return EVERYTHING
    try:
        return demand_of(deployable(read_book(run.path / BOOK_FILE).invariants, run.manifest.script))
    except InputError:
        return EVERYTHING  # recorded by hand or by an older version: nothing says that less was asked for


def unobserved(rules: Sequence[Invariant], recorded: Demand, notes: Sequence[ProcessNote]) -> dict[str, str]:
    """The invariants that this run could not judge, with the reason."""
    found: dict[str, str] = {}
    faulty = sorted({reason.split(":", 1)[0] for note in notes for reason in note.not_observed})
    for rule in rules:
        if not recorded.everything and not _covers(recorded, demand_of([rule])):
            found[rule.id] = "recorded selectively, for other invariants"
        elif faulty:
            found[rule.id] = f"a source did not observe: {', '.join(faulty)}"
    return found


def _covers(recorded: Demand, needed: Demand) -> bool:
    return needed.apis <= recorded.apis and needed.states <= recorded.states


def run_facts(run: RunFolder, notes: Sequence[ProcessNote]) -> Mapping[str, object]:
    """What a report tells of the run itself."""
    manifest = run.manifest
    return {
        "folder": str(run.path),
        "script": manifest.script,
        "mode": manifest.mode,
        "started": manifest.started,
        "ended": manifest.ended,
        "exit_code": manifest.exit_code,
        "traincheck": manifest.traincheck,
        "python": manifest.python,
        "torch": next((note.torch for note in notes if note.torch), manifest.torch),
        "processes": len(notes),
        "crashed": [f"rank {note.rank}, process {note.process}" for note in notes if not note.ended],
    }
