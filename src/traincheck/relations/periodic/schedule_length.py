"""Spans: a scheduler that is stepped again and again within a pass over the data is not over in the midst of it.

One that was given a number of epochs, but is stepped after each batch, has run its course early in the first pass. That
is known at its second step in the pass: by then it is seen how many batches lie between two of its steps, the loader
has told how many it has, and the scheduler for how many steps it was made.

Note [What a scheduler counts]
A run may be meant to be shorter than a pass over its data (so many steps of a large data set, one to try out), and its
schedule with it. So nothing is said of a scheduler that calls its end a number of steps (`total_steps`), but of those
that leave open what they count (`T_max`, `total_iters`); nor of a rate that rises: a warm-up may well be over before
the pass is. Three quarters of a pass are enough: a warm-up by hand, before the schedule begins, takes less.

Known limitations: nothing is said of a scheduler without an end (StepLR), nor where the loader does not know its
length.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from traincheck.relations.base import context_of, outcome_of
from traincheck.relations.parts import SCHEDULE, calls_of, named, number, outermost
from traincheck.relations.periodic.run_totals import ITER, LENGTH, NEXT, SCHEDULED_LR
from traincheck.vocab.demand import Demand
from traincheck.vocab.events import ANNOUNCED, Call, Window
from traincheck.vocab.facts import value_of
from traincheck.vocab.occasion import Occasion, Property, Subject
from traincheck.vocab.properties import COVERS_A_PASS

SPAN = "scheduler.span"
COVERS = Property(COVERS_A_PASS, LENGTH)
SUBJECT = Subject(SPAN, "span")
SHARE = 0.75
"""See Note [What a scheduler counts]."""


@dataclass(slots=True)
class _Pass:
    """The pass over a loader that goes on: its length, batches so far, and where each scheduler stepped in it first."""

    loader: str
    length: float | None = None
    batches: int = 0
    first: dict[str, int] = field(default_factory=dict)
    between: dict[str, int] = field(default_factory=dict)


class ScheduleLength:
    """Follows the pass over the loader that was read last, and the schedulers."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        self._passes: dict[str, _Pass] = {}
        self._totals: dict[str, float] = {}
        self._rates: dict[str, float] = {}
        self._latest = ""

    def occasions(self, window: Window) -> Iterator[Occasion]:
        """One occasion at each step of a scheduler that lowers the rate, from its second in a pass on."""
        for call in sorted(calls_of(window, ITER, NEXT, SCHEDULE), key=_when):
            if call.levels[-1] == SCHEDULE:
                if outermost(call, window):
                    yield from self._of_step(call, window)
            elif call.levels[-1] == ITER:
                lengths = (r for r in window.readings_of.get(call.seq, ()) if named(r) == LENGTH)
                length = next((number(reading.value) for reading in lengths), None)
                self._passes[call.receiver] = _Pass(call.receiver, length)
                self._latest = call.receiver
            elif value_of(call.context, "last_batch") is True or value_of(call.result, "last_batch") is True:
                self._passes.pop(call.receiver, None)
            elif call.receiver in self._passes:
                self._passes[call.receiver].batches += 1
                self._latest = call.receiver

    def _of_step(self, call: Call, window: Window) -> Iterator[Occasion]:
        name, old = call.receiver, self._rates.get(call.receiver)
        for reading in window.readings_of.get(call.seq, ()):
            value = number(reading.value)
            if value is not None and named(reading) == SPAN and reading.role == ANNOUNCED:
                self._totals[name] = value
            elif value is not None and named(reading) == SCHEDULED_LR:
                self._rates[name] = value
        total, rate, current_pass = self._totals.get(name), self._rates.get(name), self._passes.get(self._latest)
        if current_pass is None or current_pass.length is None or not current_pass.batches:
            return
        first = current_pass.first.setdefault(name, current_pass.batches)
        if current_pass.batches > first:
            between = current_pass.between.setdefault(name, current_pass.batches - first)
            if total is None or rate is None or old is None or rate >= old:
                return
            steps = int(current_pass.length // between)
            covered = total >= SHARE * steps
            note = "" if covered else _note_text(name, total, between, current_pass.loader, steps)
            yield Occasion(
                SUBJECT, context_of((), window.stage), *outcome_of(COVERS, covered), call.seq, (name,), note=note
            )

    @staticmethod
    def speaks_of(subject: Subject) -> bool:
        return subject == SUBJECT

    @staticmethod
    def needs(subject: Subject, prop: Property) -> Demand:
        return Demand.of_calls(ITER, NEXT, SCHEDULE) | Demand.of_readings(LENGTH, SPAN, SCHEDULED_LR)

    @staticmethod
    def is_optional_practice(prop: Property) -> bool:
        return False

    @staticmethod
    def describe(subject: Subject, prop: Property) -> str:
        return "a scheduler that is stepped per batch is made for as many steps as one pass over the data has"


def _note_text(name: str, total: float, between: int, loader: str, steps: int) -> str:
    unit = "batch" if between == 1 else f"group of {between} batches"
    return (
        f"{name} was made for {total:g} steps but is stepped after each {unit}, and a pass over {loader} has {steps}: "
        "its learning rate is at its end within the first epoch"
    )


def _when(call: Call) -> int:
    """A pass begins when the call that begins it ends."""
    return call.end if call.levels[-1] == ITER else call.seq
