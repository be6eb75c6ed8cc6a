"""The live driver: check each window as it closes, inside the training process, and leave the outcome behind."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from traincheck.checking.engine import Engine
from traincheck.checking.notifier import Teller
from traincheck.checking.outcome_files import save_outcome
from traincheck.vocab.events import Window
from traincheck.vocab.finding import Finding
from traincheck.vocab.invariant import Invariant


class LiveChecker:
    """Checks the windows of one process and tells each new finding once.

    `on_finding` is called on the thread that feeds. `unsaved` says that something was found since the last `save`.
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
        self._teller = Teller(on_finding)
        self._muted: Mapping[str, str] | None = None  # new ones

    def feed(self, window: Window) -> None:
        """Judge one window."""
        muted, self._muted = self._muted, None
        if muted is not None:
            self.engine.mute(muted)
        self.engine.outcome.rank = window.rank
        violations = self.engine.feed(window)
        if self._teller.feed(violations, self.engine.outcome.violations):
            self.unsaved = True

    def mute(self, muted: Mapping[str, str]) -> None:
        """From the next window on these rules (by id, with the reason) are not judged, and no others are muted."""
        self._muted = muted

    def save(self) -> None:
        """Store the outcome. Raises OutputError."""
        save_outcome(self._folder, self.engine.outcome)
        self.unsaved = False
