"""Outcome files: what a run that is checked live leaves in its run folder of what was found, whoever found it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypeVar

import msgspec

from traincheck.checking.engine import Outcome, Tried
from traincheck.checking.rank_engine import Compared
from traincheck.errors import InputError
from traincheck.files import read_bounded, replace_whole
from traincheck.invariants.book import Book
from traincheck.vocab.availability import Absence
from traincheck.vocab.finding import Site, Violation
from traincheck.vocab.invariant import Invariant
from traincheck.vocab.ranks import NONE_DIFFER, DifferingRanks

OF_PROCESSES, OF_RANKS, FOLLOWED = "live-*.json", "ranks-*.json", "followed-*.json"
"""What processes found, each of itself; what a rank found that compares them all; and what the command that started
them found, which goes on to report it and has no need of the file: that is for those who look from outside."""


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
    apart: DifferingRanks = NONE_DIFFER


class _Stored(msgspec.Struct, frozen=True):
    """An outcome as it is stored in live-RANK-PROCESS.json."""

    rank: int
    process: int
    windows: int
    steps: int
    tried: dict[str, tuple[int, int]]
    violations: tuple[_Failed, ...]
    absences: tuple[Absence, ...] = ()
    resting: dict[str, str] = {}
    failed: dict[str, tuple[int, int]] = {}


class _OfRanks(msgspec.Struct, frozen=True):
    """What was found of several ranks, as it is stored by the one that compared them."""

    process: int
    outcome: _Stored
    not_compared: tuple[str, ...]
    job: str


class OfRanks(NamedTuple):
    """What a file says of several ranks, and which process compared them."""

    process: int
    compared: Compared


def save_outcome(folder: Path, outcome: Outcome) -> None:
    """Store what a process found of itself. Raises OutputError."""
    replace_whole(folder / f"live-{outcome.rank}-{outcome.process}.json", msgspec.json.encode(_stored(outcome)))


def save_compared(folder: Path, process: int, compared: Compared) -> None:
    """Store what was found of several ranks by this process, one of them, for `gather`. Raises OutputError."""
    _save(folder / f"ranks-{process}.json", process, compared)


def save_followed(folder: Path, number: int, compared: Compared) -> None:
    """Store what the command found of the ranks of a job, its `number`th. Raises OutputError."""
    if folder.is_dir():  # one that was deleted is not made anew
        _save(folder / f"followed-{number}.json", 0, compared)


def _save(path: Path, process: int, compared: Compared) -> None:
    stored = _OfRanks(process, _stored(compared.outcome), compared.not_compared, compared.job)
    replace_whole(path, msgspec.json.encode(stored))


def read_outcome(path: Path, book: Book) -> Outcome:
    """What `save_outcome` stored; violations of rules that are not in `book` are left out. Raises InputError."""
    return _read(path, _Stored, lambda stored: _outcome(stored, book))


def read_of_ranks(path: Path, book: Book) -> OfRanks:
    """What `save_compared` or `save_followed` stored. Raises InputError."""

    def of_ranks(stored: _OfRanks) -> OfRanks:
        return OfRanks(stored.process, Compared(_outcome(stored.outcome, book), stored.not_compared, stored.job))

    return _read(path, _OfRanks, of_ranks)


def _stored(outcome: Outcome) -> _Stored:
    return _Stored(
        outcome.rank,
        outcome.process,
        outcome.windows,
        outcome.steps,
        {name: (tried.triggered, tried.failed) for name, tried in outcome.tried.items()},
        tuple(_failed(violation) for violation in outcome.violations),
        tuple(outcome.absences),
        outcome.resting,
        outcome.failed,
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
        violation.differing,
    )


_Kind = TypeVar("_Kind", _Stored, _OfRanks)
_Read = TypeVar("_Read")


def _read(path: Path, kind: type[_Kind], meaning: Callable[[_Kind], _Read]) -> _Read:
    try:
        return meaning(msgspec.json.decode(read_bounded(path), type=kind))
    except (OSError, ValueError, msgspec.MsgspecError, RecursionError) as error:  # ValueError: a site without a line
        raise InputError(
            f"{path} cannot be read ({error}). Delete it, or check the run again with `traincheck check`."
        ) from error


def _outcome(stored: _Stored, book: Book) -> Outcome:
    outcome = Outcome(stored.rank, stored.process, windows=stored.windows, steps=stored.steps)
    outcome.tried = {name: Tried(*counts) for name, counts in stored.tried.items()}
    outcome.absences, outcome.resting = list(stored.absences), dict(stored.resting)
    outcome.failed = dict(stored.failed)
    rules = {rule.id: rule for rule in book.invariants} if stored.violations else {}
    outcome.violations = [
        _violation(failed, rules[failed.id], stored) for failed in stored.violations if failed.id in rules
    ]
    return outcome


def _violation(failed: _Failed, rule: Invariant, stored: _Stored) -> Violation:
    return Violation(
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
