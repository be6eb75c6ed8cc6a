"""Source `run`: records the number of ranks at the first update, and the number of training steps at the end."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import torch.distributed
from torch.optim.optimizer import register_optimizer_step_pre_hook

from traincheck.sources.recording.patches import UndoStack
from traincheck.sources.recording.recorder import Recorder
from traincheck.vocab.demand import Demand
from traincheck.vocab.events import NO_CALL, Reading
from traincheck.vocab.facts import FactValue

RUN, RANKS, STEPS = "run", "ranks", "steps"


class RunSource:
    """Records facts of the run as a whole.

    Before the first update it records the number of ranks, 1 without torch.distributed. In the last window it records
    the number of training steps; a step that updated nothing does not count.
    """

    name = "run"

    def __init__(self) -> None:
        self._ranks_recorded = False

    def offers(self) -> str | None:
        return None

    def attach(self, demand: Demand, recorder: Recorder) -> ExitStack:
        undo = UndoStack()

        def record(attribute: str, value: FactValue) -> None:
            recorder.record_reading(Reading(recorder.next_seq(), NO_CALL, RUN, RUN, attribute, value))

        def before_step(optimizer: Any, args: Any, kwargs: Any) -> None:
            if not self._ranks_recorded:
                self._ranks_recorded = True
                record(RANKS, _ranks())

        if demand.takes_reading(RUN, RANKS) and not self._ranks_recorded:
            hook = recorder.guarded(self.name, before_step)
            recorder.hooks.add(undo, register_optimizer_step_pre_hook(hook), hook)
        if demand.takes_reading(RUN, STEPS):
            recorder.at_end(recorder.guarded(self.name, lambda: record(STEPS, recorder.steps.completed)))
        return undo


def _ranks() -> int:
    distributed = torch.distributed
    return distributed.get_world_size() if distributed.is_available() and distributed.is_initialized() else 1
