"""Source `run`: what can be said of a run as a whole: on how many ranks it trains and, when it ends, its steps."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import torch.distributed
from torch.optim.optimizer import register_optimizer_step_pre_hook

from traincheck.sources.recording.patches import Undo
from traincheck.sources.recording.recorder import Recorder
from traincheck.vocab.demand import Demand
from traincheck.vocab.events import NO_CALL, Reading
from traincheck.vocab.facts import FactValue

RUN, RANKS, STEPS = "run", "ranks", "steps"


class RunSource:
    """Tells before the first update how many ranks there are (one where torch.distributed is not used), and in the last
    window how many training steps the run made (one that updated nothing does not count)."""

    name = "run"

    def __init__(self) -> None:
        self._told = False

    def offers(self) -> str | None:
        return None

    def attach(self, demand: Demand, recorder: Recorder) -> ExitStack:
        undo = Undo()

        def tell(attribute: str, value: FactValue) -> None:
            recorder.reading(Reading(recorder.next_seq(), NO_CALL, RUN, RUN, attribute, value))

        def before_step(optimizer: Any, args: Any, kwargs: Any) -> None:
            if not self._told:
                self._told = True
                tell(RANKS, _ranks())

        if demand.wants_reading(RUN, RANKS) and not self._told:
            hook = recorder.guarded(self.name, before_step)
            recorder.hooks.add(undo, register_optimizer_step_pre_hook(hook), hook)
        if demand.wants_reading(RUN, STEPS):
            recorder.at_end(recorder.guarded(self.name, lambda: tell(STEPS, recorder.steps.completed)))
        return undo


def _ranks() -> int:
    distributed = torch.distributed
    return distributed.get_world_size() if distributed.is_available() and distributed.is_initialized() else 1
