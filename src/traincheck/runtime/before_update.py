"""Before an update: what is done on the training thread before an optimizer steps: nearly always nothing."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from traincheck.errors import StopTraining
from traincheck.runtime import callbacks
from traincheck.trace.run_notes import StopAsked
from traincheck.vocab.finding import Finding


class BeforeUpdate:
    """Called before each update: writes a snapshot, calls the program's callbacks, and ends the training, where asked.

    It is the one place where we raise into the program, and raises nothing but StopTraining. `step` tells the step
    under way, `callback` names a function to be called with findings; `on_stop` is called before the training ends.
    """

    def __init__(
        self, step: Callable[[], int], snapshot: Callable[[], None], on_stop: Callable[[], None], callback: str = ""
    ) -> None:
        self._step = step
        self._snapshot = snapshot
        self._on_stop = on_stop
        self._callback = callback
        self._named: Callable[..., Any] | None = None
        self._findings: deque[Finding] = deque()
        self._snapshot_requested = False
        self._is_pending = bool(callback)  # to be looked for before the first update
        self.because: StopAsked | None = None
        """Why the training is to end."""

    def report(self, finding: Finding) -> None:
        """Have the program's callbacks called with a finding."""
        self._findings.append(finding)
        self._is_pending = True

    def request_snapshot(self) -> None:
        """Have a snapshot written."""
        self._snapshot_requested = True
        self._is_pending = True

    def stop(self, because: StopAsked) -> None:
        """Have the training ended; the first reason stays."""
        if self.because is None:
            self.because = because
            self._is_pending = True

    def __call__(self) -> None:
        """Do what is due. Raises StopTraining."""
        if not self._is_pending:
            return
        self._is_pending = False
        if self._callback:
            self._named, self._callback = callbacks.find(self._callback), ""
        if self._snapshot_requested:
            self._snapshot_requested = False
            self._snapshot()
        try:
            while self._findings:
                callbacks.notify(self._findings.popleft(), self._named)
        except StopTraining:
            self._stop_training()
            raise
        because = self.because
        if because is None:
            return
        if because.at is not None and self._step() < because.at:
            self._is_pending = True
            return
        self._stop_training()
        raise StopTraining(because.title, because.step)

    def _stop_training(self) -> None:
        callbacks.prepare_stop()
        self._on_stop()
