"""Learns books from the examples and from the twins of a case, and counts their false alarms on clean runs."""

from __future__ import annotations

import multiprocessing
from collections import Counter
from collections.abc import Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.detection.recordings import ROOT, Program, of_example
from benchmarks.tally_verdicts import outcomes_on
from traincheck.inference.candidate_selection import select_rules
from traincheck.inference.pack_building import read_themes, split_by_theme
from traincheck.inference.tally import Tally
from traincheck.invariants.book import Book
from traincheck.vocab.invariant import ERROR

EXAMPLES = "examples"
THEMES = ROOT / "examples" / "packs.toml"
TWIN = "twin"


def example_programs(runs: Path) -> list[Program]:
    """All examples, those of several ranks included, each in a folder below `runs`."""
    home = runs / EXAMPLES
    single = sorted((ROOT / "examples").glob("*.py"))
    ranks = sorted((ROOT / "examples" / "distributed").glob("*.py"))
    return [
        *(of_example(script, 1, home / f"{script.stem}.program") for script in single),
        *(of_example(script, 2, home / f"{script.stem}.program") for script in ranks),
    ]


@dataclass
class Alarms:
    """Counts of a book on clean runs: every violated rule is a false alarm."""

    runs: int = 0
    triggered: int = 0
    failed: int = 0
    runs_with_error: list[str] = field(default_factory=list)
    runs_with_notice: list[str] = field(default_factory=list)
    rules: Counter[str] = field(default_factory=Counter)

    def add(self, name: str, book: Book, tally: Tally) -> None:
        """Count what `book` says of the clean run behind `tally`."""
        outcome = outcomes_on(book, tally)
        self.runs += 1
        self.triggered += len(outcome.triggered)
        self.failed += len(outcome.failed)
        if any(rule.severity == ERROR for rule in outcome.failed):
            self.runs_with_error.append(name)
        elif outcome.failed:
            self.runs_with_notice.append(name)
        for rule in outcome.failed:
            self.rules[f"{name}: {rule.severity}: {rule.sentence} ({rule.precondition})"] += 1

    def join(self, other: Alarms) -> None:
        """Add what was counted elsewhere."""
        self.runs += other.runs
        self.triggered += other.triggered
        self.failed += other.failed
        self.runs_with_error += other.runs_with_error
        self.runs_with_notice += other.runs_with_notice
        self.rules.update(other.rules)

    def as_data(self) -> dict[str, Any]:
        """The figures as data, every alarm included."""
        return {
            "runs": self.runs,
            "with_error": self.runs_with_error,
            "with_notice": self.runs_with_notice,
            "triggered": self.triggered,
            "failed": self.failed,
            "failed_share_of_triggered": round(self.failed / max(1, self.triggered), 6),
            "alarms": dict(self.rules.most_common()),
        }


def alarms(books: Iterable[Book], clean: Mapping[str, Tally]) -> Alarms:
    """Count the false alarms of all `books` on all clean runs."""
    counts = Alarms()
    for book in books:
        for name, tally in clean.items():
            counts.add(name, book, tally)
    return counts


WHOLE = ""
"""In place of a pack: the book that all packs are made of."""


def leave_one_out(tallies: Mapping[str, Tally], jobs: int) -> dict[str, Alarms]:
    """Return the outcomes of the book of all other examples on each example (`WHOLE`), and of its packs.

    `jobs` books are learned in parallel.
    """
    by_pack: dict[str, Alarms] = {}
    # Forks share the tallies; to send them to each process would take longer than to learn.
    context = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(jobs, context, initializer=_share, initargs=(tallies,)) as pool:
        for part in pool.map(_without, tallies):
            for pack, counts in part.items():
                by_pack.setdefault(pack, Alarms()).join(counts)
    return by_pack


_shared: dict[str, Tally] = {}
"""The tallies of all examples."""


def _share(tallies: Mapping[str, Tally]) -> None:
    _shared.update(tallies)


def _without(name: str) -> dict[str, Alarms]:
    book, _ = select_rules([tally for other, tally in _shared.items() if other != name])
    by_pack: dict[str, Alarms] = {}
    for pack, part in {WHOLE: book, **split_by_theme(book, read_themes(THEMES))}.items():
        by_pack[pack] = Alarms()
        by_pack[pack].add(name, part, _shared[name])
    return by_pack
