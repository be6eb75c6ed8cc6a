"""Accept a run as known good, and learn the book of the project's library again with it."""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import msgspec

from traincheck.errors import BadOption
from traincheck.inference.candidate_selection import select_rules
from traincheck.inference.contradictions import with_contradictions
from traincheck.inference.tally import Key, Tally
from traincheck.inference.tally_files import read_tallies, write_tallies
from traincheck.inference.tally_runs import Progress, gather
from traincheck.invariants.book import Book, read_book, write_book
from traincheck.invariants.builtin_rules import of_training
from traincheck.invariants.diff import Difference, compare
from traincheck.invariants.library import BOOK, TALLIES, AcceptedRun, LastChange, Record, read_record, write_record
from traincheck.invariants.mute import carry_over
from traincheck.trace.folder import RunFolder
from traincheck.vocab.events import EVAL
from traincheck.vocab.invariant import Invariant

MAX_RUNS = 20
"""Runs of one program that the library keeps. Older ones are removed, so that the committed files stay small."""


@dataclass(frozen=True)
class Acceptance:
    """The result: the accepted runs, how the book differs now, the removed runs, the rules of packs that are muted now
    because an accepted run breaks them, and the muted rules that the book has no more.
    """

    runs: tuple[AcceptedRun, ...]
    book: Book
    difference: Difference
    let_go: tuple[AcceptedRun, ...] = ()
    muted: tuple[Invariant, ...] = ()
    unmuted: tuple[Invariant, ...] = ()
    remarks: tuple[str, ...] = ()


def accept(
    folders: Sequence[Path],
    library: Path,
    reason: str = "",
    progress: Progress | None = None,
    packs: Sequence[Invariant] = (),
    *,
    changed: Set[Path] = frozenset(),
    only: Sequence[str] = (),
    without: Mapping[Path, Set[Key]] = MappingProxyType({}),
    write: bool = True,
) -> Acceptance:
    """Add the recorded runs in `folders` to the library, and mute the rules of `packs` that accepted runs break.

    The runs in `changed` had findings. What is new in them is meant: it belongs to what the program does from now on. A
    run that is accepted `only` for findings with these diagnoses adds nothing about the subjects `without`, which other
    findings are about. It may be accepted as a whole later. Unless `write`, the library stays as it is.

    Raises BadOption for a run that was accepted before, RunFolderError for one that cannot be read, LibraryUnreadable,
    BookError and TallyError if the library cannot be read, and OutputError.
    """
    record = read_record(library)
    tally_path = library / TALLIES
    stored_tallies = read_tallies(tally_path) if tally_path.is_file() else []
    partial = {run.run for run in record.runs if run.only}
    known_runs = {tally.run for tally in stored_tallies} - partial
    today = datetime.date.today().isoformat()
    new: dict[str, tuple[Tally, AcceptedRun]] = {}
    remarks: list[str] = []
    for path in folders:
        results = gather([path], progress)
        remarks.extend(results.remarks)
        for tally in results.tallies:
            if tally.run in known_runs:
                raise BadOption("accept", str(path), "a run that was not accepted before")
            for key in without.get(path, ()):
                tally.cells.pop(key, None)
            accepted_run = _accepted_run(tally, RunFolder.open(path), today, reason)
            accepted_run = msgspec.structs.replace(accepted_run, changed=path in changed, only=tuple(only))
            new[tally.run] = tally, accepted_run
    accepted = tuple(run for _, run in new.values())
    kept, let_go = _newest((*(run for run in record.runs if run.run not in new), *accepted))
    kept_runs = {run.run for run in kept}
    older_tallies = (tally for tally in stored_tallies if tally.run not in new)
    tallies = [tally for tally in (*older_tallies, *(tally for tally, _ in new.values())) if tally.run in kept_runs]
    older = read_book(library / BOOK) if (library / BOOK).is_file() else Book()
    approved = {run.run for run in kept if run.changed}
    general = (*packs, *of_training(compares_ranks=True))
    learned = with_contradictions(select_rules(sorted(tallies, key=_order), approved)[0], general, tallies)
    book, _, unmuted = carry_over(learned, older.invariants)
    difference = compare(older, book)
    last = LastChange(
        runs=tuple(run.run for run in accepted),
        came=len(difference.only_in_b),
        went=len(difference.only_in_a),
        changed=len(difference.changed),
    )
    if write:
        write_tallies(sorted(tallies, key=_order), tally_path)
        write_book(book, library / BOOK)
        write_record(Record(runs=kept, last=last), library)
    muted_before = {rule.id for rule in older.invariants if rule.mute}
    muted = tuple(rule for rule in book.invariants if rule.mute and rule.id not in muted_before)
    return Acceptance(accepted, book, difference, let_go, muted, tuple(unmuted), tuple(remarks))


def _order(tally: Tally) -> tuple[str, str]:
    return tally.script, tally.run


def _accepted_run(tally: Tally, run: RunFolder, today: str, reason: str) -> AcceptedRun:
    notes = run.notes()
    return AcceptedRun(
        script=tally.script,
        date=today,
        run=tally.run,
        digest=tally.digest,
        steps=tally.steps,
        ranks=max((note.world_size for note in notes), default=1),
        torch=next((note.torch for note in notes if note.torch), ""),
        python=run.manifest.python,
        reason=" ".join(reason.split()),
    )


def _newest(runs: Sequence[AcceptedRun]) -> tuple[tuple[AcceptedRun, ...], tuple[AcceptedRun, ...]]:
    """The last `MAX_RUNS` of each program, and the others. Of two runs of one day, the later one in the list is
    newer."""
    count: Counter[str] = Counter()
    kept: list[AcceptedRun] = []
    let_go: list[AcceptedRun] = []
    for _, run in sorted(enumerate(runs), key=lambda numbered: (numbered[1].date, numbered[0]), reverse=True):
        count[run.script] += 1
        (kept if count[run.script] <= MAX_RUNS else let_go).append(run)
    return tuple(sorted(kept)), tuple(sorted(let_go))


# -- what the runs have shown ------------------------------------------------------------------------------------------

_APIS_BY_FEATURE = {
    "saving a checkpoint": ("torch.save",),
    "going on from a checkpoint": ("torch.optim.Optimizer.load_state_dict",),
    "a schedule of the learning rate": ("torch.optim.lr_scheduler.LRScheduler.step",),
    "clipping of gradients": ("torch.nn.utils.clip_grad_norm_", "torch.nn.utils.clip_grad_value_"),
    "scaled losses": ("torch.amp.GradScaler.scale",),
}


def never_seen(tallies: Sequence[Tally], ranks: int) -> list[str]:
    """Features that programs may use and none of the runs used, so that the book says nothing about them."""
    contexts = {context for tally in tallies for cells in tally.cells.values() for context in cells}
    facts = {fact for context in contexts for fact in context}
    apis = {level for tally in tallies for levels in tally.levels for level in levels}
    unseen = [] if any(fact == ("stage", EVAL) for fact in facts) else ["evaluation"]
    unseen += [] if any(name == "autocast" and value != "off" for name, value in facts) else ["autocast"]
    unseen += [feature for feature, names in _APIS_BY_FEATURE.items() if not apis & set(names)]
    return unseen + ([] if ranks > 1 else ["several ranks"])
