"""A watch that begins and ends by calls, for frameworks that tell by callbacks when they train."""

from __future__ import annotations

import atexit
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from traincheck.runtime.observe import Observation, checked

if TYPE_CHECKING:
    from traincheck.vocab.finding import Report


class TrainingWatch:
    """`traincheck.checked(**options)`, begun and ended by calls.

    A training that ends without saying so (an exception, of which the framework does not tell) is concluded when the
    next one begins, or when the interpreter ends. `options` are looked at when a training begins; `observation` is that
    of the training that was begun last.
    """

    def __init__(self, options: dict[str, Any]) -> None:
        self._options = options
        self._open: ExitStack | None = None
        self.observation: Observation | None = None

    def begin(self) -> None:
        """A training begins. Raises TrainCheckError where it cannot be checked as asked (a book that is not there)."""
        self.end()
        with ExitStack() as stack:
            self.observation = stack.enter_context(checked(**self._options))
            self._open = stack.pop_all()
        atexit.register(self.end)

    def end(self) -> None:
        """The training that was begun is over, if one is."""
        stack, self._open = self._open, None
        atexit.unregister(self.end)
        if stack is not None:
            stack.close()


class WatchResults:
    """What every callback tells of its watch."""

    _watch: TrainingWatch

    @property
    def report(self) -> Report | None:
        """What was found in the training that ended last; None before, and under `traincheck run`, which tells it."""
        return self._watch.observation.report if self._watch.observation is not None else None

    @property
    def folder(self) -> Path | None:
        """The run folder of the training that was begun last."""
        return self._watch.observation.folder if self._watch.observation is not None else None
