"""A source to copy: it observes the optimizer of `tiny_optim`, a library that TrainCheck does not know.

Copy this file into your package, put your library in the place of `tiny_optim`, name `DECLARATION` as an entry point of
the group `traincheck.sources`, and prove the source in a test with `traincheck.testing.sources.check_source`. The file
imports neither torch nor the library: TrainCheck reads declarations where neither is installed.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING

from traincheck.sources.base import UndoStack
from traincheck.vocab.source_declaration import SourceDeclaration

if TYPE_CHECKING:
    from traincheck.sources.recording.recorder import Recorder
    from traincheck.sources.toolkit import SourceToolkit
    from traincheck.vocab.demand import Demand

LIBRARY = "tiny_optim"

DECLARATION = SourceDeclaration(
    name="tiny_optim",
    observes="updates by the optimizer of tiny_optim",
    absence="No rule is judged: updates end training steps.",
    apis=("tiny_optim.",),
    cost="step",
    required=True,
    source=f"{__name__}:TinyOptimSource",
)


class TinyOptimSource:
    """Reports each call of `tiny_optim.SignSGD.step` as an update."""

    name = "tiny_optim"

    def __init__(self, toolkit: SourceToolkit) -> None:
        self._toolkit = toolkit

    def offers(self) -> str | None:
        return None  # without the library there is nothing to observe, which is no reason to leave rules out

    def attach(self, demand: Demand, recorder: Recorder) -> ExitStack:
        undo = UndoStack()

        def library_imported() -> None:
            self._toolkit.observe_updates(
                undo,
                self,
                demand,
                recorder,
                sys.modules[LIBRARY].SignSGD,
                parameters=lambda optimizer: optimizer.parameters,
                learning_rate=lambda optimizer: optimizer.lr,
            )

        self._toolkit.when_imported(undo, self, recorder, LIBRARY, library_imported)
        return undo
