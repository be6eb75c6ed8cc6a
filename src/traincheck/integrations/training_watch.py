"""Starts and ends a check by calls, for frameworks that report the start and end of training through callbacks."""

from __future__ import annotations

import atexit
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from traincheck.runtime.observe import Observation, checked

if TYPE_CHECKING:
    from traincheck.vocab.finding import Report


class TrainingWatch:
    """Starts and ends `traincheck.checked(**options)` by calls.

    A framework may not report an exception. Then the check ends when the next training begins, or at the interpreter's
    exit. `options` are read when a training begins. `observation` is that of the last training.
    """

    def __init__(self, options: dict[str, Any]) -> None:
        self._options = options
        self._open: ExitStack | None = None
        self.observation: Observation | None = None

    def begin(self) -> None:
        """Begin a check. Raises TrainCheckError if an option cannot be satisfied (for example a missing book)."""
        self.end()
        with ExitStack() as stack:
            self.observation = stack.enter_context(checked(**self._options))
            self._open = stack.pop_all()
        atexit.register(self.end)

    def end(self) -> None:
        """End the current check, if there is one."""
        stack, self._open = self._open, None
        atexit.unregister(self.end)
        if stack is not None:
            stack.close()


class WatchResults:
    """Result attributes that all callbacks share."""

    _watch: TrainingWatch

    @property
    def report(self) -> Report | None:
        """Report of the last finished training. None before that, and under `traincheck run`."""
        return self._watch.observation.report if self._watch.observation is not None else None

    @property
    def folder(self) -> Path | None:
        """Run folder of the last training."""
        return self._watch.observation.folder if self._watch.observation is not None else None
