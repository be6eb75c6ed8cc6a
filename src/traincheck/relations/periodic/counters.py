"""Check that a step counter grows by one with each update.

The step count that an optimizer keeps for its parameters (the highest and the lowest among them) grows with each
`Optimizer.step`, and that of a scheduler with each of its steps. A counter that stands still reveals a step that does
nothing.

Known limitations: the lowest count is judged only in steps in which all parameters of the optimizer have a gradient (an
unused expert stands still), and not if it falls (a parameter that joins late starts to count late). Steps without
gradients, the first step after a load, and schedulers that are given the epoch are not judged.
"""

from __future__ import annotations

from collections.abc import Iterator

from traincheck.relations.base import context_of, outcome_of, short
from traincheck.relations.parts import SCHEDULE, UPDATE, Part, calls_of, named, number, outermost, phrase_for
from traincheck.vocab.demand import ARGUMENTS, Demand
from traincheck.vocab.events import LIVE, Call, Window
from traincheck.vocab.facts import value_of
from traincheck.vocab.occasion import Occasion, Property, Subject
from traincheck.vocab.properties import GROWS_BY_ONE

GRAIN = "counter"
HIGHEST, LOWEST, EPOCH = "optimizer_state.step", "optimizer_state.lowest_step", "scheduler.last_epoch"
LOAD = "torch.optim.Optimizer.load_state_dict"
_CALL_FACTS = ("grads", "closure")
"""Facts of a call that may explain why it does not count: an optimizer skips parameters without gradients."""
_COUNTED = {HIGHEST: UPDATE, LOWEST: UPDATE, EPOCH: SCHEDULE}


class Counters(Part):
    """Keeps the last count of each counter."""

    def __init__(self) -> None:
        self._last: dict[tuple[str, str], float] = {}

    def forget(self) -> None:
        self._last.clear()

    def occasions(self, window: Window) -> Iterator[Occasion]:
        """Yield one occasion at each counted call, from the second on."""
        for call in calls_of(window, UPDATE, SCHEDULE, LOAD):
            if call.levels[-1] == LOAD:
                for key in [key for key in self._last if key[1] == call.receiver]:
                    del self._last[key]
            elif call.levels[-1] == UPDATE or outermost(call, window):
                yield from self._of_call(call, window)

    def _of_call(self, call: Call, window: Window) -> Iterator[Occasion]:
        for reading in window.readings_of.get(call.seq, ()):
            quantity, count = named(reading), number(reading.value)
            if _COUNTED.get(quantity) != call.levels[-1] or reading.role != LIVE or count is None:
                continue
            last = self._last.get((quantity, call.receiver))
            self._last[quantity, call.receiver] = count
            if last is None or (quantity == LOWEST and (count < last or value_of(call.context, "grads") == "mixed")):
                continue
            if value_of(call.context, "grads") == "unused":
                continue
            if quantity == EPOCH and value_of(call.args, "epoch") is not None:
                continue
            held, failed = outcome_of(Property(GROWS_BY_ONE, short(_COUNTED[quantity])), count == last + 1)
            call_facts = tuple(pair for pair in call.context if pair[0] in _CALL_FACTS)
            context = context_of(call_facts, window.stage)
            yield Occasion(Subject(quantity, GRAIN), context, held, failed, call.seq, (reading.variable,))

    @staticmethod
    def speaks_of(subject: Subject) -> bool:
        return subject.grain == GRAIN

    @staticmethod
    def needs(subject: Subject, prop: Property) -> Demand:
        call = _COUNTED[subject.api]
        if call == UPDATE:
            return Demand.of_calls(UPDATE, LOAD) | Demand.of_readings(subject.api)
        return Demand.of_calls(SCHEDULE, values=(ARGUMENTS,)) | Demand.of_readings(subject.api)

    @staticmethod
    def describe(subject: Subject, prop: Property) -> str:
        return f"with each call of {prop.object}, the {phrase_for(subject.api)} grows by one"
