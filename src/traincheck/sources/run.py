"""Source `run`: what can be said of a run as a whole when it ends."""

from __future__ import annotations

from contextlib import ExitStack

from traincheck.sources.recorder import Recorder
from traincheck.vocab.demand import Demand
from traincheck.vocab.events import NO_CALL, Reading

RUN, STEPS = "run", "steps"


class RunSource:
    """Tells in the last window how many training steps the run made (one that updated nothing does not count)."""

    name = "run"

    def offers(self) -> str | None:
        return None

    def attach(self, demand: Demand, recorder: Recorder) -> ExitStack:
        def tell() -> None:
            recorder.reading(Reading(recorder.next_seq(), NO_CALL, RUN, RUN, STEPS, recorder.steps.completed))

        if demand.wants_reading(RUN, STEPS):
            recorder.at_end(recorder.guarded(self.name, tell))
        return ExitStack()
