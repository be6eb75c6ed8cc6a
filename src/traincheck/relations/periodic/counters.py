"""Counters: what counts updates grows by one with each of them.

The step count that an optimizer keeps for its parameters (the highest and the lowest among them) grows with each
`Optimizer.step`, and that of a scheduler with each of its steps. One that stands still tells of a step that does
nothing.

Known limitations: the lowest count is judged only in steps in which all parameters that the optimizer holds have a
gradient (an expert that is not used stands still), and not where it falls (a parameter that joins late begins to count
late). Nothing is said of a step that had nothing to learn from, right after a state was loaded, nor of a scheduler that
is told the epoch.
"""

from __future__ import annotations

from collections.abc import Iterator

from traincheck.relations.base import context_of, fate, short
from traincheck.relations.parts import SCHEDULE, UPDATE, calls_of, named, number, outermost, readings, said
from traincheck.vocab.demand import Demand
from traincheck.vocab.events import LIVE, Call, Window
from traincheck.vocab.facts import value_of
from traincheck.vocab.occasion import Occasion, Property, Subject

GROWS = "grows by one per"
GRAIN = "counter"
HIGHEST, LOWEST, EPOCH = "optimizer_state.step", "optimizer_state.lowest_step", "scheduler.last_epoch"
LOAD = "torch.optim.Optimizer.load_state_dict"
_TELLING = ("grads", "closure")
"""What of a call may tell why it counts or does not: an optimizer that finds no gradients passes parameters over."""
_COUNTED = {HIGHEST: UPDATE, LOWEST: UPDATE, EPOCH: SCHEDULE}


class Counters:
    """Keeps the last count of each counter."""

    def __init__(self) -> None:
        self._last: dict[tuple[str, str], float] = {}

    def forget(self) -> None:
        self._last.clear()

    def occasions(self, window: Window) -> Iterator[Occasion]:
        """One occasion at each call that a counter counts, from the second on."""
        for call in calls_of(window, UPDATE, SCHEDULE, LOAD):
            if call.levels[-1] == LOAD:
                for key in [key for key in self._last if key[1] == call.receiver]:
                    del self._last[key]
            elif call.levels[-1] == UPDATE or outermost(call, window):
                yield from self._of_call(call, window)

    def _of_call(self, call: Call, window: Window) -> Iterator[Occasion]:
        for reading in window.readings_of.get(call.seq, ()):
            thing, now = named(reading), number(reading.value)
            if _COUNTED.get(thing) != call.levels[-1] or reading.role != LIVE or now is None:
                continue
            last = self._last.get((thing, call.receiver))
            self._last[thing, call.receiver] = now
            if last is None or (thing == LOWEST and (now < last or value_of(call.context, "grads") == "mixed")):
                continue
            if value_of(call.context, "grads") == "unused":
                continue
            if thing == EPOCH and value_of(call.args, "epoch") is not None:
                continue
            held, failed = fate(Property(GROWS, short(_COUNTED[thing])), now == last + 1)
            told_of_call = tuple(pair for pair in call.context if pair[0] in _TELLING)
            context = context_of(told_of_call, window.stage)
            yield Occasion(Subject(thing, GRAIN), context, held, failed, call.seq, (reading.variable,))

    @staticmethod
    def speaks_of(subject: Subject) -> bool:
        return subject.grain == GRAIN

    @staticmethod
    def needs(subject: Subject, prop: Property) -> Demand:
        call = _COUNTED[subject.api]
        if call == UPDATE:
            return Demand(frozenset((UPDATE, LOAD)), readings(subject.api))
        return Demand(frozenset((SCHEDULE,)), readings(subject.api) | {(SCHEDULE, "arguments")})

    @staticmethod
    def is_habit(prop: Property) -> bool:
        return False

    @staticmethod
    def describe(subject: Subject, prop: Property) -> str:
        return f"with each call of {prop.object}, the {said(subject.api)} grows by one"
