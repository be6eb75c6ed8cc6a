"""Check that a scheduler which is stepped per batch does not end within the first pass over the data.

A scheduler that was given a number of epochs, but is stepped after each batch, ends early in the first pass. TrainCheck
detects it at the second scheduler step in the pass: by then, the number of batches between two steps is known, and the
loader and the scheduler have announced their lengths.

Note [What a scheduler counts]
A run may be shorter than a pass over its data on purpose (a number of steps of a large data set, or a trial), and its
schedule with it. So schedulers that call their end a number of steps (`total_steps`) are not judged, but those that
leave open what they count are (`T_max`, `total_iters`). A rate that rises is not judged either: a warm-up may end
before the pass does. Three quarters of a pass are enough: a warm-up by hand, before the schedule begins, takes less.

A trainer of a library declares the length of its run, so that the unit is judged by it (schedule_units.py).

Known limitations: a scheduler without an end (StepLR) is not judged, nor is a pass over a loader without a length.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from traincheck.relations.base import context_of, outcome_of
from traincheck.relations.parts import ITER, NEXT, SCHEDULE, Part, calls_of, named, number, outermost
from traincheck.relations.periodic.run_totals import LENGTH, SCHEDULED_LR
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
    """The current pass over a loader: its length, batches so far, and where each scheduler first stepped in it."""

    loader: str
    length: float | None = None
    batches: int = 0
    first: dict[str, int] = field(default_factory=dict)
    between: dict[str, int] = field(default_factory=dict)


class ScheduleLength(Part):
    """Follows the current pass over the most recent loader, and the schedulers."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        self._passes: dict[str, _Pass] = {}
        self._totals: dict[str, float] = {}
        self._rates: dict[str, float] = {}
        self._latest = ""

    def occasions(self, window: Window) -> Iterator[Occasion]:
        """Yield one occasion at each scheduler step that lowers the rate, from the second in a pass on."""
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
    def describe(subject: Subject, prop: Property) -> str:
        return "a scheduler that is stepped per batch is made for as many steps as one pass over the data has"


def _note_text(name: str, total: float, between: int, loader: str, steps: int) -> str:
    unit = "batch" if between == 1 else f"group of {between} batches"
    return (
        f"{name} was made for {total:g} steps but is stepped after each {unit}, and a pass over {loader} has {steps}: "
        "its learning rate is at its end within the first epoch"
    )


def _when(call: Call) -> int:
    """The position of a call. A pass begins when the call that begins it ends."""
    return call.end if call.levels[-1] == ITER else call.seq
