"""Runs requested work on the training thread before an optimizer steps: callbacks, snapshots and stops."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from traincheck.errors import StopTraining
from traincheck.runtime import callbacks
from traincheck.trace.run_notes import StopRequest
from traincheck.vocab.finding import Finding


class LastStepMade(SystemExit):
    """Ends the program as `sys.exit(0)` does: `finally` blocks run, launchers see success, nothing is printed."""

    def __init__(self) -> None:
        super().__init__(0)


class BeforeUpdate:
    """Called before each update. If requested, it writes a snapshot, calls the program's callbacks, and stops the
    training.

    Only this class raises into the program, and it raises only StopTraining, and LastStepMade after `last_step` (0 for
    none). `step` returns the current step, and `callback` names a function that receives findings. `on_stop` is called
    before the training stops.
    """

    def __init__(
        self,
        step: Callable[[], int],
        snapshot: Callable[[], None],
        on_stop: Callable[[], None],
        callback: str = "",
        last_step: int = 0,
    ) -> None:
        self._step = step
        self._snapshot = snapshot
        self._on_stop = on_stop
        self._callback = callback
        self._last_step = last_step
        self._named: Callable[..., Any] | None = None
        self._findings: deque[Finding] = deque()
        self._snapshot_requested = False
        self._is_pending = bool(callback)  # resolve the callback before the first update
        self.request: StopRequest | None = None
        """Reason for the stop, or None."""

    def report(self, finding: Finding) -> None:
        """Call the program's callbacks with a finding before the next update."""
        self._findings.append(finding)
        self._is_pending = True

    def request_snapshot(self) -> None:
        """Write a snapshot before the next update."""
        self._snapshot_requested = True
        self._is_pending = True

    def stop(self, request: StopRequest) -> None:
        """Stop the training before an update; the first reason stays."""
        if self.request is None:
            self.request = request
            self._is_pending = True

    def __call__(self) -> None:
        """Do the requested work. Raises StopTraining or LastStepMade."""
        if self._last_step and self._step() > self._last_step:
            raise LastStepMade  # again before each later update of a program that catches it
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
        request = self.request
        if request is None:
            return
        if request.at is not None and self._step() < request.at:
            self._is_pending = True
            return
        self._stop_training()
        raise StopTraining(request.title, request.step)

    def _stop_training(self) -> None:
        callbacks.prepare_stop()
        self._on_stop()
