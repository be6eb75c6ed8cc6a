"""Checks each window of a training process as it closes, and saves the outcome in the run folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from traincheck.checking.engine import Engine
from traincheck.checking.notifier import Notifier
from traincheck.checking.outcome_files import save_outcome
from traincheck.vocab.events import Window
from traincheck.vocab.finding import Finding
from traincheck.vocab.invariant import Invariant


class LiveChecker:
    """Checks the windows of one process and reports each new finding once.

    `on_finding` is called on the thread that feeds. `unsaved` says that a finding came up since the last `save`.
    """

    def __init__(
        self,
        rules: Sequence[Invariant],
        folder: Path,
        process: int,
        on_finding: Callable[[Finding], None],
    ) -> None:
        self.engine = Engine(rules, process=process)
        self.unsaved = False
        self._folder = folder
        self._notifier = Notifier(on_finding)
        self._new_mutes: Mapping[str, str] | None = None

    def feed(self, window: Window) -> None:
        """Judge one window."""
        muted, self._new_mutes = self._new_mutes, None
        if muted is not None:
            self.engine.mute(muted)
        self.engine.outcome.rank = window.rank
        violations = self.engine.feed(window)
        if self._notifier.feed(violations, self.engine.outcome.violations):
            self.unsaved = True

    def mute(self, muted: Mapping[str, str]) -> None:
        """Suspend these rules (by id, with the reason) from the next window on, and no others that a user muted."""
        self._new_mutes = muted

    def save(self) -> None:
        """Store the outcome. Raises OutputError."""
        save_outcome(self._folder, self.engine.outcome)
        self.unsaved = False
