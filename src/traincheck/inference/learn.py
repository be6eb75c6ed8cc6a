"""Learn a book of invariants and a journal from run folders and tally files."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from traincheck.inference.candidate_selection import select_rules
from traincheck.inference.journal import Journal
from traincheck.inference.tally import Tally
from traincheck.inference.tally_runs import Cluster, Progress, gather
from traincheck.inference.tally_runs import tally_folder as tally_folder
from traincheck.inference.tally_runs import tally_windows as tally_windows
from traincheck.invariants.book import Book


@dataclass(frozen=True)
class Learned:
    """The result of one inference: the book, the journal, the tallies, and remarks for the reader."""

    book: Book
    journal: Journal
    seconds: float
    tallies: tuple[Tally, ...] = ()
    remarks: tuple[str, ...] = ()


def learn(
    sources: Sequence[Path], progress: Progress | None = None, jobs: int = 1, cluster: Cluster | None = None
) -> Learned:
    """Learn a book from recorded good runs (run folders, or tally files of them), in one streaming pass over each.

    The result depends neither on the order of `sources` nor on who reads them (`jobs` processes, or a cluster). Raises
    what `gather` raises.
    """
    began = time.perf_counter()
    gathered = gather(sources, progress, jobs, cluster)
    if progress:
        progress("weighing candidates", 0, 0)
    book, journal = select_rules(gathered.tallies)
    return Learned(book, journal, time.perf_counter() - began, gathered.tallies, gathered.remarks)
