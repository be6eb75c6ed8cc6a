"""Reads the state of a run from its folder, on this host or on another one.

Note [The view from outside]
The processes of a run write their state and their findings into its folder (runtime/heartbeat.py); the command that
started them writes its findings about several ranks (checking/rank_comparison.py). This module reads these files
only, and only those that changed, so each look is cheap. It reads no recording, judges no rule and changes nothing.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from traincheck import redaction
from traincheck.checking.engine import Outcome
from traincheck.checking.liveness import Liveness, rank_states_of, training_processes
from traincheck.checking.notifier import Notifier
from traincheck.checking.outcome_files import SavedComparison, read_comparison, read_outcome
from traincheck.checking.results import CheckResult, combine, combine_live, findings_of
from traincheck.checking.watched_files import WatchedFiles
from traincheck.errors import RunFolderError, RunFolderNotFound, TraceOutOfReach, TrainCheckError
from traincheck.invariants.book import Book, read_book
from traincheck.invariants.selection import deployable
from traincheck.trace.folder import RunFolder
from traincheck.trace.format import BOOK_FILE, MANIFEST
from traincheck.trace.run_notes import Manifest, ProcessNote, from_json
from traincheck.vocab.finding import Finding
from traincheck.vocab.invariant import ERROR
from traincheck.vocab.run_status import DELETED, ENDED, GOING, KILLED, SILENT_AFTER, WAITING, RunStatus

KILLED_AFTER = 10
"""The run counts as killed after so many times `heartbeat_timeout` without a heartbeat of any process."""

_NOTE = re.compile(r"process-(-?[0-9]{1,18})-([0-9]{1,18})\.json")
_OUTCOME = re.compile(r"live-(-?[0-9]{1,18})-([0-9]{1,18})\.json")
_OF_RANKS = re.compile(r"(ranks|followed)-([0-9]{1,18})\.json")
_NAMES = re.compile(
    "|".join(f"(?:{kind.pattern})" for kind in (_NOTE, _OUTCOME, _OF_RANKS)) + "|run\\.json|book\\.jsonl"
)


class Look(NamedTuple):
    """The findings that are new since the last look, and the status of the run."""

    findings: tuple[Finding, ...]
    status: RunStatus


class Watcher:
    """Looks at a run folder again and again. It waits for a folder that is missing or empty.

    It skips files that cannot be read (a damaged note, for example); the status has the reason until they can be read.
    """

    def __init__(
        self,
        path: Path,
        heartbeat_timeout: float = SILENT_AFTER,
        now: Callable[[], float] = time.monotonic,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.path = path
        self._heartbeat_timeout = heartbeat_timeout
        self._now = now
        self._files = WatchedFiles(path, _NAMES, clock)
        self._manifest: Manifest | None = None
        self._book: Book | None = None
        self._rules = 0
        self._checked = 0
        self._processes: dict[tuple[int, int], Liveness] = {}
        self._outcomes: dict[str, Outcome] = {}
        self._comparisons: dict[str, SavedComparison] = {}
        self._early: set[str] = set()  # files that need the book, which is not there yet
        self._unread: dict[str, str] = {}
        self._failed: frozenset[tuple[str, int]] = frozenset()
        self._findings: tuple[Finding, ...] = ()
        self._new: list[Finding] = []
        self._notifier = Notifier(self._new.append)
        self._deleted = False
        self._fresh = False

    def look(self) -> Look:
        """Look at the folder.

        Raises RunFolderNotFound for a file in its place, RunFolderEmpty for a folder of something else, TraceOutOfReach
        where the system refuses a first look, and BookError when the book that it holds cannot be read.
        """
        self._read_changes()
        if self._fresh:
            self._fresh = False
            self._update_findings()
        new = tuple(self._new)
        self._new.clear()
        return Look(new, self._status())

    def _update_findings(self) -> None:
        """Count the rules that were judged, and group violations again if other rules fail than before."""
        outcomes = self._all_outcomes()
        self._checked = len(
            {name for outcome in outcomes for name, counts in outcome.tried.items() if counts.triggered}
        )
        violations = [violation for outcome in outcomes for violation in outcome.violations]
        failed = frozenset((violation.invariant.id, violation.process) for violation in violations)
        if failed != self._failed:
            self._failed = failed
            self._findings = findings_of(outcomes)
            self._notifier.notify(self._findings)

    def report(self) -> CheckResult | None:
        """The result so far, as the run itself would report it; None for a run that is recorded only."""
        if self._book is None or self._manifest is None:
            return None
        outcomes = [outcome for outcome in self._outcomes.values() if outcome.windows]
        saved = [comparison for name, comparison in self._comparisons.items() if not name.startswith("followed")]
        followed = [
            comparison.comparison for name, comparison in self._comparisons.items() if name.startswith("followed")
        ]
        processes = training_processes(self._processes, self._now(), self._heartbeat_timeout)
        state = self._state(processes, self._now())
        ranks = None if state == ENDED else rank_states_of(processes, state == KILLED)
        try:
            return combine_live(RunFolder.open(self.path), self._book, outcomes, saved, followed, ranks)
        except RunFolderError as error:  # it was deleted
            rules = deployable(self._book.invariants, self._manifest.script)
            comparisons = [*followed, *(comparison.comparison for comparison in saved)]
            folder = redaction.text(str(self.path))
            facts = {"folder": folder, "script": self._manifest.script, "mode": self._manifest.mode}
            return combine(
                self._book,
                rules,
                outcomes,
                unobserved={},
                not_observed=[str(error)],
                run=facts,
                comparisons=comparisons,
            )

    # -- reading ---------------------------------------------------------------------------------------------------

    def _read_changes(self) -> None:
        begun = self._manifest is not None or bool(self._processes)
        try:
            changes = self._files.look()
        except FileNotFoundError:
            self._deleted = begun
            return
        except NotADirectoryError as error:
            raise RunFolderNotFound(self.path) from error
        except OSError as error:
            reason = error.strerror or str(error)
            if not begun:
                raise TraceOutOfReach(self.path, reason) from error
            self._unread[""] = f"'{self.path}' cannot be read: {reason}"
            return
        self._unread.pop("", None)
        if not (begun or changes.changed):
            self._refuse_other_folder()
        if MANIFEST in changes.gone:
            self._deleted = True
        for name in changes.gone:
            self._forget(name)
        for name in sorted({*changes.changed, *self._early}, key=_order):
            self._read(name, changes.changed.get(name, 0.0))

    def _refuse_other_folder(self) -> None:
        """Raise RunFolderEmpty for a folder with other files, because waiting would not help."""
        try:
            names = [entry.name for entry in self.path.iterdir()]
        except OSError:
            return
        if names and not any(_NAMES.fullmatch(name) for name in names):
            RunFolder.open(self.path)

    def _read(self, name: str, age: float) -> None:
        file = self.path / name
        try:
            if name == MANIFEST:
                self._manifest = from_json(file, Manifest)
            elif name == BOOK_FILE:
                self._read_book(file)
            elif owner := _NOTE.fullmatch(name):
                self._beat((int(owner[1]), int(owner[2])), from_json(file, ProcessNote), age)
            elif self._book is None:
                self._early.add(name)
                return
            elif _OUTCOME.fullmatch(name):
                self._outcomes[name] = read_outcome(file, self._book)
                self._fresh = True
            else:
                self._comparisons[name] = read_comparison(file, self._book)
                self._fresh = True
        except TrainCheckError as error:
            if name == BOOK_FILE:
                raise
            self._unread[name] = str(error)
        else:
            self._unread.pop(name, None)
        self._early.discard(name)

    def _read_book(self, file: Path) -> None:
        if self._book is None:
            self._book = read_book(file)
            script = self._manifest.script if self._manifest is not None else ""
            self._rules = len(deployable(self._book.invariants, script))

    def _beat(self, owner: tuple[int, int], note: ProcessNote, age: float) -> None:
        if owner in self._processes:
            self._processes[owner].beat(note, self._now())
        else:
            self._processes[owner] = Liveness.first(note, self._now(), age)

    def _forget(self, name: str) -> None:
        """A process removes its note when it learns that it has another rank. Other missing files were deleted."""
        self._unread.pop(name, None)
        owner = _NOTE.fullmatch(name)
        if owner and not self._deleted:
            self._processes.pop((int(owner[1]), int(owner[2])), None)

    # -- status ----------------------------------------------------------------------------------------------------

    def _all_outcomes(self) -> list[Outcome]:
        return [*self._outcomes.values(), *(saved.comparison.outcome for saved in self._comparisons.values())]

    def _status(self) -> RunStatus:
        manifest, now = self._manifest, self._now()
        if manifest is None and not self._processes:
            return RunStatus(redaction.text(str(self.path)), unread=tuple(self._unread.values()))
        processes = training_processes(self._processes, now, self._heartbeat_timeout)
        state = self._state(processes, now)
        status = RunStatus(
            redaction.text(str(self.path)),
            state,
            rules=self._rules,
            checked=self._checked,
            errors=sum(finding.severity == ERROR for finding in self._findings),
            notices=sum(finding.severity != ERROR for finding in self._findings),
            ranks=tuple(
                process.status(now, self._heartbeat_timeout, over=state in (ENDED, KILLED)) for process in processes
            ),
            unread=tuple(self._unread.values()),
        )
        if manifest is None:
            return status
        return replace(
            status,
            run=manifest.id,
            script=manifest.script,
            mode=manifest.mode,
            exit_code=manifest.exit_code,
            stopped=manifest.stopped_by_us,
        )

    def _state(self, processes: list[Liveness], now: float) -> str:
        if self._manifest is not None and self._manifest.ended:
            return ENDED
        if self._deleted:
            return DELETED
        if processes and all(process.is_silent(now, KILLED_AFTER * self._heartbeat_timeout) for process in processes):
            return KILLED
        return GOING if processes or self._manifest is not None else WAITING


def _order(name: str) -> tuple[bool, bool, str]:
    """The manifest first (it has the script), then the book, then files that need both."""
    return name != MANIFEST, name != BOOK_FILE, name
