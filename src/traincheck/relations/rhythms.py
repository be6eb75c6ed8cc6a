"""Rhythms: what has changed every k training steps goes on doing so.

The step in which a learning rate falls, or parameters move, is a matter of the program; that it keeps to its rhythm is
a habit. A rhythm is expected once `ESTABLISHED` periods of the same length were seen in this very run. When it is
broken that is told once, and it has to be established anew.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from traincheck.relations.base import context_of
from traincheck.relations.parts import UPDATE, named, readings
from traincheck.vocab.demand import Demand
from traincheck.vocab.events import LIVE, NO_CALL, TRAIN, Reading, Window
from traincheck.vocab.facts import FactValue
from traincheck.vocab.occasion import Occasion, Property, Subject

KEEPS_RHYTHM = "keeps its rhythm"
GRAIN = "rhythm"
LR = "hyperparameter.lr"
_CHANGES = {"parameter.data": UPDATE}
"""Changes that have a rhythm of their own. (When buffers change follows from the modules' modes.)"""

ESTABLISHED = 4
"""Periods of one length before it counts as a rhythm: one more than for a regular call, since what is read may
stand still for reasons of its own."""
LONGEST = 64
"""Periods of more steps are epochs, of which few runs have enough."""

MOST_RATES = 1000
"""Parameter groups whose learning rate is kept; more are made in a loop."""


@dataclass(slots=True)
class _Beat:
    """When a thing last changed, how long its periods are and how many of that length were seen in a row."""

    last: int
    period: int = 0
    seen: int = 0

    def tick(self, now: int, changed: bool) -> bool | None:
        """Note one step; whether the rhythm was kept in it, None where it said nothing of this step."""
        length = now - self.last
        expected = self.seen >= ESTABLISHED and length <= self.period
        kept = changed == (length == self.period) if expected and (changed or length == self.period) else None
        if changed:
            self.seen = self.seen + 1 if length == self.period else 1
            self.period, self.last = length, now
        if kept is False or length > LONGEST:
            self.seen = 0
        return kept


class Rhythms:
    """Counts training steps, and keeps a beat for each kind of thing."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        self._beats: dict[str, _Beat] = {}
        self._rates: dict[str, FactValue] = {}
        self._now = 0

    def occasions(self, window: Window) -> Iterator[Occasion]:
        """One occasion for each thing whose rhythm says that it changes in this step, or that it does not yet."""
        updates = [call.seq for call in window.calls if call.levels[-1] == UPDATE]
        changed: dict[str, int] = {}
        for change in window.changes:
            thing, call = f"{change.kind}.{change.attribute}", window.by_seq.get(change.call)
            if change.changed and call is not None and call.levels[-1] == _CHANGES.get(thing):
                changed[thing] = change.call
        for seq in updates:
            for reading in window.readings_of.get(seq, ()):
                if named(reading) == LR and reading.role == LIVE and self._moved(reading):
                    changed[LR] = seq
        if window.stage != TRAIN:
            return
        self._now += 1
        for thing in sorted(self._beats.keys() | changed.keys()):
            beat = self._beats.get(thing)
            if beat is None:
                self._beats[thing] = _Beat(self._now)
                continue
            kept = beat.tick(self._now, thing in changed)
            if kept is not None:
                told, nothing = frozenset((Property(KEEPS_RHYTHM, thing),)), frozenset[Property]()
                seq = changed.get(thing, updates[0] if updates else NO_CALL)
                held, failed = (told, nothing) if kept else (nothing, told)
                yield Occasion(Subject(thing, GRAIN), context_of((), window.stage), held, failed, seq)

    def _moved(self, reading: Reading) -> bool:
        old = self._rates.get(reading.variable)
        self._rates[reading.variable] = reading.value
        if len(self._rates) > MOST_RATES:
            self._rates.clear()
        return old is not None and old != reading.value

    @staticmethod
    def speaks_of(subject: Subject) -> bool:
        return subject.grain == GRAIN

    @staticmethod
    def needs(subject: Subject, prop: Property) -> Demand:
        if subject.api == LR:
            return Demand(frozenset((UPDATE,)), readings(LR))
        call = _CHANGES[subject.api]
        return Demand(frozenset((UPDATE, call)), frozenset(((call, subject.api),)))

    @staticmethod
    def is_habit(prop: Property) -> bool:
        return prop.verb == KEEPS_RHYTHM

    @staticmethod
    def describe(subject: Subject, prop: Property) -> str:
        what = "the learning rate" if subject.api == LR else "some parameter"
        return f"{what} goes on changing every so many training steps, as it did before"
