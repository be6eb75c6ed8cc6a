"""Source `jax`: recognises updates in programs of JAX. It waits for the program to import JAX."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING

from traincheck.sources.compile.compiled_calls import WhenImported
from traincheck.sources.recording.patches import UndoStack
from traincheck.sources.recording.recorder import Recorder
from traincheck.vocab.demand import Demand

if TYPE_CHECKING:
    from traincheck.sources.jax.jitted_functions import JittedFunctions


class JaxSource:
    """Observes calls of functions that `jax.jit` and `jax.pmap` make from now on. Without JAX it does nothing."""

    name = "jax"

    def __init__(self, may_step: Callable[[], None], when_imported: WhenImported) -> None:
        self._may_step = may_step
        self._when_imported = when_imported
        self._functions: JittedFunctions | None = None

    def offers(self) -> str | None:
        return None  # a program without JAX has nothing to observe, which is no reason to leave rules out

    def attach(self, demand: Demand, recorder: Recorder) -> ExitStack:
        undo = UndoStack()

        def imported() -> None:
            if self._functions is None:
                from traincheck.sources.jax.jitted_functions import JittedFunctions  # most programs do without

                self._functions = JittedFunctions(self._may_step)
            self._functions.attach(undo, demand, recorder, self._when_imported)

        undo.callback(self._when_imported("jax", recorder.guarded(self.name, imported, always=True), None))
        return undo
