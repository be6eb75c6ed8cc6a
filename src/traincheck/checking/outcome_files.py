"""Saves the outcomes of a live run in its run folder, and reads them again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypeVar

import msgspec

from traincheck.checking.deployed_rules import RuleCounts
from traincheck.checking.engine import Outcome
from traincheck.checking.rank_engine import RankComparison
from traincheck.errors import InputError
from traincheck.files import read_bounded, replace_whole
from traincheck.invariants.book import Book
from traincheck.vocab.availability import Absence
from traincheck.vocab.finding import Site, Violation
from traincheck.vocab.invariant import Invariant
from traincheck.vocab.ranks import NONE_DIFFER, DifferingRanks

PROCESS_FILES, RANK_FILES, FOLLOWED_FILES = "live-*.json", "ranks-*.json", "followed-*.json"
"""The outcome of each process; of the rank that compares all ranks; and of the command that started them. The command
reports its outcome itself; its file is for `traincheck watch`."""


class _StoredViolation(msgspec.Struct, frozen=True):
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
    apart: DifferingRanks = NONE_DIFFER


class _StoredOutcome(msgspec.Struct, frozen=True):
    """An outcome as it is stored in live-RANK-PROCESS.json."""

    rank: int
    process: int
    windows: int
    steps: int
    tried: dict[str, tuple[int, int]]
    violations: tuple[_StoredViolation, ...]
    absences: tuple[Absence, ...] = ()
    resting: dict[str, str] = {}
    failed: dict[str, tuple[int, int]] = {}


class _StoredComparison(msgspec.Struct, frozen=True):
    """A comparison of ranks as it is stored by the process that made it."""

    process: int
    outcome: _StoredOutcome
    not_compared: tuple[str, ...]
    job: str


class SavedComparison(NamedTuple):
    """A comparison of ranks, and the process that made it."""

    process: int
    comparison: RankComparison


def save_outcome(folder: Path, outcome: Outcome) -> None:
    """Store the outcome of a process. Raises OutputError."""
    replace_whole(folder / f"live-{outcome.rank}-{outcome.process}.json", msgspec.json.encode(_stored(outcome)))


def save_comparison(folder: Path, process: int, comparison: RankComparison) -> None:
    """Store the comparison of several ranks that this process, one of them, made. Raises OutputError."""
    _save(folder / f"ranks-{process}.json", process, comparison)


def save_followed(folder: Path, number: int, comparison: RankComparison) -> None:
    """Store the command's comparison of the ranks of its `number`th job. Raises OutputError."""
    if folder.is_dir():  # a deleted folder stays deleted
        _save(folder / f"followed-{number}.json", 0, comparison)


def _save(path: Path, process: int, comparison: RankComparison) -> None:
    stored = _StoredComparison(process, _stored(comparison.outcome), comparison.not_compared, comparison.job)
    replace_whole(path, msgspec.json.encode(stored))


def read_outcome(path: Path, book: Book) -> Outcome:
    """The outcome of a process, without violations of rules that are not in `book`. Raises InputError."""
    return _read(path, _StoredOutcome, lambda stored: _outcome(stored, book))


def read_comparison(path: Path, book: Book) -> SavedComparison:
    """A comparison of ranks. Raises InputError."""

    def comparison(stored: _StoredComparison) -> SavedComparison:
        outcome = _outcome(stored.outcome, book)
        return SavedComparison(stored.process, RankComparison(outcome, stored.not_compared, stored.job))

    return _read(path, _StoredComparison, comparison)


def _stored(outcome: Outcome) -> _StoredOutcome:
    return _StoredOutcome(
        outcome.rank,
        outcome.process,
        outcome.windows,
        outcome.steps,
        {name: (counts.triggered, counts.failed) for name, counts in outcome.tried.items()},
        tuple(_stored_violation(violation) for violation in outcome.violations),
        tuple(outcome.absences),
        outcome.suspended,
        outcome.failed,
    )


def _stored_violation(violation: Violation) -> _StoredViolation:
    site = violation.site
    return _StoredViolation(
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
        violation.differing,
    )


_Kind = TypeVar("_Kind", _StoredOutcome, _StoredComparison)
_Read = TypeVar("_Read")


def _read(path: Path, kind: type[_Kind], convert: Callable[[_Kind], _Read]) -> _Read:
    try:
        return convert(msgspec.json.decode(read_bounded(path), type=kind))
    except (OSError, ValueError, msgspec.MsgspecError, RecursionError) as error:  # ValueError: a site without a line
        raise InputError(
            f"{path} cannot be read ({error}). Delete it, or check the run again with `traincheck check`."
        ) from error


def _outcome(stored: _StoredOutcome, book: Book) -> Outcome:
    outcome = Outcome(stored.rank, stored.process, windows=stored.windows, steps=stored.steps)
    outcome.tried = {name: RuleCounts(*counts) for name, counts in stored.tried.items()}
    outcome.absences, outcome.suspended = list(stored.absences), dict(stored.resting)
    outcome.failed = dict(stored.failed)
    rules = {rule.id: rule for rule in book.invariants} if stored.violations else {}
    outcome.violations = [
        _violation(saved, rules[saved.id], stored) for saved in stored.violations if saved.id in rules
    ]
    return outcome


def _violation(saved: _StoredViolation, rule: Invariant, stored: _StoredOutcome) -> Violation:
    return Violation(
        rule,
        saved.step,
        stored.rank,
        stored.process,
        saved.window,
        saved.stage,
        saved.seq,
        Site.parse(saved.site),
        saved.receiver,
        saved.variables,
        saved.occasions,
        saved.evidence,
        saved.note,
        saved.apart,
    )
