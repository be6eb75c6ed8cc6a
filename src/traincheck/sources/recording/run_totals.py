"""Source `run`: records the number of ranks and the seed at the first update, and the training steps at the end."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from typing import Any

import torch.distributed
from torch.optim.optimizer import register_optimizer_step_pre_hook

from traincheck.sources.recording.patches import UndoStack
from traincheck.sources.recording.recorder import Recorder
from traincheck.vocab.demand import Demand
from traincheck.vocab.events import LIVE, NO_CALL, PARTIAL, Reading
from traincheck.vocab.facts import FactValue

RUN, RANKS, SEED, STEPS = "run", "ranks", "seed", "steps"


class RunSource:
    """Records facts of the run as a whole.

    Before the first update it records the number of ranks, 1 without torch.distributed, and the seed that torch got on
    the CPU. In the last window it records the number of training steps; a step that updated nothing does not count.
    The reading is partial if an exception ended the run.
    """

    name = "run"

    def __init__(self) -> None:
        self._recorded = False

    def offers(self) -> str | None:
        return None

    def attach(self, demand: Demand, recorder: Recorder) -> ExitStack:
        undo = UndoStack()

        def record(attribute: str, value: FactValue, role: str = LIVE) -> None:
            recorder.record_reading(Reading(recorder.next_seq(), NO_CALL, RUN, RUN, attribute, value, role))

        def record_steps() -> None:
            record(STEPS, recorder.steps.completed, PARTIAL if is_interrupted() else LIVE)

        def before_step(optimizer: Any, args: Any, kwargs: Any) -> None:
            if not self._recorded:
                self._recorded = True
                for attribute in at_first_update:
                    record(attribute, _ranks() if attribute == RANKS else torch.initial_seed())

        at_first_update = [attribute for attribute in (RANKS, SEED) if demand.takes_reading(RUN, attribute)]
        if at_first_update and not self._recorded:
            hook = recorder.guarded(self.name, before_step)
            recorder.hooks.add(undo, register_optimizer_step_pre_hook(hook), hook)
        if demand.takes_reading(RUN, STEPS):
            recorder.at_end(recorder.guarded(self.name, record_steps))
        return undo


def is_interrupted() -> bool:
    """Whether an exception ends the program or the recording. Python keeps the one that ended the program."""
    return sys.exc_info()[1] is not None or getattr(sys, "last_value", None) is not None


def _ranks() -> int:
    distributed = torch.distributed
    return distributed.get_world_size() if distributed.is_available() and distributed.is_initialized() else 1
