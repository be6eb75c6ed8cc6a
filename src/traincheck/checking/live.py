"""The live driver: check each window as it closes, inside the training process, and leave the outcome behind."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from traincheck.checking.checked import Checked, conclude
from traincheck.checking.engine import Engine, Outcome, Tried
from traincheck.checking.findings import Teller
from traincheck.checking.offline import recorded_demand, run_facts, unobserved
from traincheck.checking.rank_engine import Compared
from traincheck.checking.rank_states import recorded_ranks
from traincheck.errors import InputError
from traincheck.files import write_whole
from traincheck.invariants.book import Book
from traincheck.invariants.selection import deployable
from traincheck.trace.folder import RunFolder
from traincheck.vocab.events import Window
from traincheck.vocab.finding import Finding, Site, Violation
from traincheck.vocab.invariant import Invariant
from traincheck.vocab.ranks import NOT_APART, Apart

SAVE_EVERY = 500
"""Windows between two savings of a quiet run's outcome: what a killed process loses of its counts."""


class _Failed(msgspec.Struct, frozen=True):
    """A violation as it is stored: the invariant by its id."""

    id: str
    step: int
    window: int
    stage: str
    seq: int
    site: str
    receiver: str
    variables: tuple[str, ...]
    occasions: int
    evidence: tuple[str, ...] = ()
    note: str = ""
    apart: Apart = NOT_APART


class _Stored(msgspec.Struct, frozen=True):
    """An outcome as it is stored in live-RANK-PROCESS.json."""

    rank: int
    process: int
    windows: int
    steps: int
    tried: dict[str, tuple[int, int]]
    violations: tuple[_Failed, ...]


class _OfRanks(msgspec.Struct, frozen=True):
    """What was found of several ranks, as it is stored in ranks-PROCESS.json by the one that compared them."""

    process: int
    outcome: _Stored
    not_compared: tuple[str, ...]
    job: str


class LiveChecker:
    """Checks the windows of one process and tells each new finding once.

    `on_finding` is called on the thread that feeds. The outcome is saved whenever there is something new to lose.
    """

    def __init__(
        self,
        rules: Sequence[Invariant],
        folder: Path,
        process: int,
        on_finding: Callable[[Finding], None],
    ) -> None:
        self.engine = Engine(rules, process=process)
        self._folder = folder
        self._teller = Teller(on_finding)

    def feed(self, window: Window) -> None:
        """Judge one window."""
        self.engine.outcome.rank = window.rank
        violations = self.engine.feed(window)
        told = self._teller.feed(violations, self.engine.outcome.violations)
        if told or self.engine.outcome.windows % SAVE_EVERY == 0:
            self.save()

    def save(self) -> None:
        """Store the outcome. Raises OutputError."""
        outcome = self.engine.outcome
        file = self._folder / f"live-{outcome.rank}-{outcome.process}.json"
        write_whole(file, msgspec.json.encode(_stored(outcome)))


def save_compared(folder: Path, process: int, compared: Compared) -> None:
    """Store what was found of several ranks by this process, for `gather`. Raises OutputError."""
    stored = _OfRanks(process, _stored(compared.outcome), compared.not_compared, compared.job)
    write_whole(folder / f"ranks-{process}.json", msgspec.json.encode(stored))


def _stored(outcome: Outcome) -> _Stored:
    return _Stored(
        outcome.rank,
        outcome.process,
        outcome.windows,
        outcome.steps,
        {name: (tried.triggered, tried.failed) for name, tried in outcome.tried.items()},
        tuple(_failed(violation) for violation in outcome.violations),
    )


def _failed(violation: Violation) -> _Failed:
    site = violation.site
    return _Failed(
        violation.invariant.id,
        violation.step,
        violation.window,
        violation.stage,
        violation.seq,
        f"{site.file}:{site.line}:{site.function}" if site else "",
        violation.receiver,
        violation.variables,
        violation.occasions,
        violation.evidence,
        violation.note,
        violation.apart,
    )


def gather(folder: Path, book: Book, compared: Sequence[Compared] = ()) -> Checked:
    """The result of a live run, from what its processes left in the run folder, and what was found of its ranks.

    A process that left nothing (killed before its first finding) counts as not observed. Raises RunFolderError.
    """
    run = RunFolder.open(folder)
    notes = run.notes()
    reasons = [reason for note in notes for reason in note.not_observed]
    outcomes = [_outcome(_read(path, _Stored), book) for path in sorted(run.path.glob("live-*.json"))]
    by_ranks = [_read(path, _OfRanks) for path in sorted(run.path.glob("ranks-*.json"))]
    compared = [*compared, *(Compared(_outcome(one.outcome, book), one.not_compared, one.job) for one in by_ranks)]
    killed = {note.process for note in notes if not note.ended}
    if any(one.process in killed for one in by_ranks):
        reasons.append("the rank that compares the others was killed: of the last steps it may not have told")
    if any(note.exchange for note in notes) and not by_ranks:
        reasons.append("what concerns several ranks is told where rank 0 runs, which compares them")
    if not outcomes:
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
        compared=compared,
        ranks=recorded_ranks(run, notes),
    )


_Kind = TypeVar("_Kind", _Stored, _OfRanks)


def _read(path: Path, kind: type[_Kind]) -> _Kind:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, msgspec.MsgspecError) as error:
        raise InputError(
            f"{path} cannot be read ({error}). Delete it, or check the run again with `traincheck check`."
        ) from error


def _outcome(stored: _Stored, book: Book) -> Outcome:
    outcome = Outcome(stored.rank, stored.process, windows=stored.windows, steps=stored.steps)
    outcome.tried = {name: Tried(*counts) for name, counts in stored.tried.items()}
    for failed in stored.violations:
        rule = book.by_id(failed.id)
        if rule is not None:
            outcome.violations.append(
                Violation(
                    rule,
                    failed.step,
                    stored.rank,
                    stored.process,
                    failed.window,
                    failed.stage,
                    failed.seq,
                    Site.parse(failed.site),
                    failed.receiver,
                    failed.variables,
                    failed.occasions,
                    failed.evidence,
                    failed.note,
                    failed.apart,
                )
            )
    return outcome
