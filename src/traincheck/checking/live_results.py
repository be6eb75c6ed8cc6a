"""Gathered: the result of a live run, put together from what each of its processes left behind."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from traincheck.checking.engine import Outcome
from traincheck.checking.offline import cost_of, recorded_demand, run_facts, unobserved
from traincheck.checking.outcome_files import OF_PROCESSES, OF_RANKS, OfRanks, read_of_ranks, read_outcome
from traincheck.checking.rank_engine import Compared
from traincheck.checking.rank_states import recorded_ranks
from traincheck.checking.results import Checked, conclude
from traincheck.invariants.book import Book
from traincheck.invariants.selection import deployable
from traincheck.trace.folder import RunFolder
from traincheck.vocab.finding import RankState


def gather(folder: Path, book: Book, compared: Sequence[Compared] = ()) -> Checked:
    """The result of a live run, from what its processes left in the run folder, and what was found of its ranks.

    A process that left nothing (killed before its first finding) counts as not observed. Raises RunFolderError.
    """
    run = RunFolder.open(folder)
    outcomes = [read_outcome(path, book) for path in sorted(run.path.glob(OF_PROCESSES))]
    by_ranks = [read_of_ranks(path, book) for path in sorted(run.path.glob(OF_RANKS))]
    return put_together(run, book, outcomes, by_ranks, compared)


def put_together(
    run: RunFolder,
    book: Book,
    outcomes: Sequence[Outcome],
    by_ranks: Sequence[OfRanks],
    compared: Sequence[Compared] = (),
    ranks: Sequence[RankState] | None = None,
) -> Checked:
    """The result of a live run: what its processes found, each of itself, what ranks and what the command found of
    several of them, and what is known of the run. Raises RunFolderError.

    How the ranks fared is read in their recordings, unless `ranks` tells it.
    """
    notes = run.notes()
    reasons = [reason for note in notes for reason in note.not_observed]
    killed = {note.process for note in notes if not note.ended}
    if any(one.process in killed for one in by_ranks):
        reasons.append("the rank that compares the others was killed: of the last steps it may not have told")
    if any(note.exchange for note in notes) and not by_ranks:
        reasons.append("what concerns several ranks is told where rank 0 runs, which compares them")
    if run.manifest.deleted:
        reasons.append("the run folder was deleted while the program ran: what was seen of it is lost")
    elif not outcomes:
        reasons.append("no training was observed: the program did not import torch, or ended before its first step")
    rules = deployable(book.invariants, run.manifest.script)
    return conclude(
        book,
        rules,
        outcomes,
        unobserved=unobserved(rules, recorded_demand(run), notes),
        not_observed=reasons,
        dropped=sum(note.dropped for note in notes),
        run=run_facts(run, notes),
        compared=[*compared, *(one.compared for one in by_ranks)],
        ranks=recorded_ranks(run, notes) if ranks is None else ranks,
        cost=cost_of(notes),
    )
