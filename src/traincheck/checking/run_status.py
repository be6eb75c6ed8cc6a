"""Watching: what a run shows to those who look at its folder from outside, on this host or on another one.

Note [The view from outside]
The processes of a run write down how they fare and what they found (runtime/heartbeat.py), the command that started
them what it found of several ranks (checking/rank_comparison.py). Here it is read again, and nothing else is: no
recording, no
rule is tried, and the run is not touched. Only files that have changed are read, so that a look costs little.
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
from traincheck.checking.live_results import put_together
from traincheck.checking.liveness import Pulse, of_ranks, states_of
from traincheck.checking.notifier import Teller
from traincheck.checking.outcome_files import OfRanks, read_of_ranks, read_outcome
from traincheck.checking.results import Checked, conclude, findings_of
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

GONE = 10
"""So many times as long without a sign of any process, and the run is taken for killed as a whole."""

_NOTE = re.compile(r"process-(-?[0-9]{1,18})-([0-9]{1,18})\.json")
_OUTCOME = re.compile(r"live-(-?[0-9]{1,18})-([0-9]{1,18})\.json")
_OF_RANKS = re.compile(r"(ranks|followed)-([0-9]{1,18})\.json")
_NAMES = re.compile(
    "|".join(f"(?:{kind.pattern})" for kind in (_NOTE, _OUTCOME, _OF_RANKS)) + "|run\\.json|book\\.jsonl"
)


class Look(NamedTuple):
    """What a look found: findings that were not told before, and how the run fares."""

    findings: tuple[Finding, ...]
    status: RunStatus


class Watcher:
    """Looks at a run folder again and again. A folder that is not there yet, or is empty, is waited for.

    What cannot be read (a garbled note, say) is left out, with the reason in the status, until it can be.
    """

    def __init__(
        self,
        path: Path,
        silent_after: float = SILENT_AFTER,
        now: Callable[[], float] = time.monotonic,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.path = path
        self._silent_after = silent_after
        self._now = now
        self._files = WatchedFiles(path, _NAMES, clock)
        self._manifest: Manifest | None = None
        self._book: Book | None = None
        self._rules = 0
        self._checked = 0
        self._pulses: dict[tuple[int, int], Pulse] = {}
        self._outcomes: dict[str, Outcome] = {}
        self._compared: dict[str, OfRanks] = {}
        self._early: set[str] = set()  # what cannot be read before the book is there
        self._unread: dict[str, str] = {}
        self._strands: frozenset[tuple[str, int]] = frozenset()
        self._findings: tuple[Finding, ...] = ()
        self._new: list[Finding] = []
        self._teller = Teller(self._new.append)
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
            self._find()
        new = tuple(self._new)
        self._new.clear()
        return Look(new, self._status())

    def _find(self) -> None:
        """Count the rules that have come up, and tell what is new where rules failed that had not failed before."""
        outcomes = self._all_outcomes()
        self._checked = len({name for one in outcomes for name, tried in one.tried.items() if tried.triggered})
        strands = frozenset((one.invariant.id, one.process) for outcome in outcomes for one in outcome.violations)
        if strands != self._strands:
            self._strands = strands
            self._findings = findings_of(outcomes)
            self._teller.tell(self._findings)

    def report(self) -> Checked | None:
        """All that is known by now, as the run itself would report it; None for a run that is recorded only."""
        if self._book is None or self._manifest is None:
            return None
        outcomes = [outcome for outcome in self._outcomes.values() if outcome.windows]
        by_ranks = [found for name, found in self._compared.items() if not name.startswith("followed")]
        followed = [found.compared for name, found in self._compared.items() if name.startswith("followed")]
        pulses = of_ranks(self._pulses, self._now(), self._silent_after)
        state = self._state(pulses, self._now())
        ranks = None if state == ENDED else states_of(pulses, state == KILLED)
        try:
            return put_together(RunFolder.open(self.path), self._book, outcomes, by_ranks, followed, ranks)
        except RunFolderError as error:  # it was deleted
            rules = deployable(self._book.invariants, self._manifest.script)
            compared = [*followed, *(found.compared for found in by_ranks)]
            folder = redaction.text(str(self.path))
            facts = {"folder": folder, "script": self._manifest.script, "mode": self._manifest.mode}
            return conclude(
                self._book, rules, outcomes, unobserved={}, not_observed=[str(error)], run=facts, compared=compared
            )

    # -- reading ---------------------------------------------------------------------------------------------------

    def _read_changes(self) -> None:
        begun = self._manifest is not None or bool(self._pulses)
        try:
            changes = self._files.look()
        except FileNotFoundError:
            self._deleted = begun
            return
        except NotADirectoryError as error:
            raise RunFolderNotFound(self.path) from error
        except OSError as error:
            why = error.strerror or str(error)
            if not begun:
                raise TraceOutOfReach(self.path, why) from error
            self._unread[""] = f"'{self.path}' cannot be read: {why}"
            return
        self._unread.pop("", None)
        if not (begun or changes.changed):
            self._hold_nothing_else()
        if MANIFEST in changes.gone:
            self._deleted = True
        for name in changes.gone:
            self._forget(name)
        for name in sorted({*changes.changed, *self._early}, key=_order):
            self._read(name, changes.changed.get(name, 0.0))

    def _hold_nothing_else(self) -> None:
        """Raise RunFolderEmpty where the folder holds something and is no run folder: waiting would not help."""
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
                self._compared[name] = read_of_ranks(file, self._book)
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
        if owner in self._pulses:
            self._pulses[owner].beat(note, self._now())
        else:
            self._pulses[owner] = Pulse.of(note, self._now(), age)

    def _forget(self, name: str) -> None:
        """A process takes its note back when it learns that it has another rank; all else that is gone was deleted."""
        self._unread.pop(name, None)
        owner = _NOTE.fullmatch(name)
        if owner and not self._deleted:
            self._pulses.pop((int(owner[1]), int(owner[2])), None)

    # -- telling ---------------------------------------------------------------------------------------------------

    def _all_outcomes(self) -> list[Outcome]:
        return [*self._outcomes.values(), *(found.compared.outcome for found in self._compared.values())]

    def _status(self) -> RunStatus:
        manifest, now = self._manifest, self._now()
        if manifest is None and not self._pulses:
            return RunStatus(redaction.text(str(self.path)), unread=tuple(self._unread.values()))
        pulses = of_ranks(self._pulses, now, self._silent_after)
        state = self._state(pulses, now)
        status = RunStatus(
            redaction.text(str(self.path)),
            state,
            rules=self._rules,
            checked=self._checked,
            errors=sum(finding.severity == ERROR for finding in self._findings),
            notices=sum(finding.severity != ERROR for finding in self._findings),
            ranks=tuple(pulse.status(now, self._silent_after, state in (ENDED, KILLED)) for pulse in pulses),
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

    def _state(self, pulses: list[Pulse], now: float) -> str:
        if self._manifest is not None and self._manifest.ended:
            return ENDED
        if self._deleted:
            return DELETED
        if pulses and all(pulse.quiet(now, GONE * self._silent_after) for pulse in pulses):
            return KILLED
        return GOING if pulses or self._manifest is not None else WAITING


def _order(name: str) -> tuple[bool, bool, str]:
    """What the rest is read by comes first: the script's name, then the book, of which some is deployed on it."""
    return name != MANIFEST, name != BOOK_FILE, name
