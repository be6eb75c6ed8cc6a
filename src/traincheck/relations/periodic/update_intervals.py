"""Rhythms: what has changed every k training steps goes on doing so.

In which steps parameters move is a matter of the program; that it keeps to its rhythm is a habit. A rhythm is expected
once `ESTABLISHED` periods of the same length were seen in this very run. When it is broken that is told once, and it
has to be established anew. So it has where no update of a step need show (the learning rate or all gradients are zero).
Steps are those in which an optimizer stepped. (A learning rate has no rhythm to speak of: schedules end, rest and begin
anew.)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from traincheck.relations.base import context_of, fate
from traincheck.relations.parts import UPDATE
from traincheck.vocab.demand import Demand
from traincheck.vocab.events import TRAIN, Change, Window
from traincheck.vocab.occasion import Occasion, Property, Subject

KEEPS_RHYTHM = "keeps its rhythm"
GRAIN = "rhythm"
_CHANGES = {"parameter.data": UPDATE}
"""Changes that have a rhythm of their own. (When buffers change follows from the modules' modes.)"""

ESTABLISHED = 4
"""Periods of one length before it counts as a rhythm: one more than for a regular call, since what is read may
stand still for reasons of its own."""
LONGEST = 64
"""Periods of more steps are epochs, of which few runs have enough."""


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


def _need_not_show(change: Change) -> bool:
    told = dict(change.context)
    quiet = told.get("lr") in ("zero", "negligible", "none") or told.get("grad") in ("zero", "unused")
    return quiet or told.get("lost") is True


class Rhythms:
    """Counts training steps, and keeps a beat for each kind of thing."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        self._beats: dict[str, _Beat] = {}
        self._now = 0

    def occasions(self, window: Window) -> Iterator[Occasion]:
        """One occasion for each thing whose rhythm says that it changes in this step, or that it does not yet."""
        updates = [call.seq for call in window.calls if call.levels[-1] == UPDATE]
        if not updates:
            return
        changed: dict[str, int] = {}
        quiet: dict[str, bool] = {}
        latest: dict[str, int] = {}
        for change, places in window.together:
            thing, call = f"{change.kind}.{change.attribute}", window.by_seq.get(change.call)
            if call is not None and call.levels[-1] == _CHANGES.get(thing):
                if change.changed and places[-1] >= latest.get(thing, 0):
                    changed[thing], latest[thing] = change.call, places[-1]
                quiet[thing] = quiet.get(thing, True) and _need_not_show(change)
        if window.stage != TRAIN:
            return
        for thing in quiet.keys() - changed.keys():
            if quiet[thing]:
                self._beats.pop(thing, None)
        self._now += 1
        for thing in sorted(self._beats.keys() | changed.keys()):
            beat = self._beats.get(thing)
            if beat is None:
                self._beats[thing] = _Beat(self._now)
                continue
            kept = beat.tick(self._now, thing in changed)
            if kept is not None:
                seq = changed.get(thing, updates[0])
                judged = fate(Property(KEEPS_RHYTHM, thing), bool(kept))
                yield Occasion(Subject(thing, GRAIN), context_of((), window.stage), *judged, seq)

    @staticmethod
    def speaks_of(subject: Subject) -> bool:
        return subject.grain == GRAIN

    @staticmethod
    def needs(subject: Subject, prop: Property) -> Demand:
        call = _CHANGES[subject.api]
        return Demand(frozenset((UPDATE, call)), frozenset(((call, subject.api),)))

    @staticmethod
    def is_habit(prop: Property) -> bool:
        return prop.verb == KEEPS_RHYTHM

    @staticmethod
    def describe(subject: Subject, prop: Property) -> str:
        return "some parameter goes on changing every so many updates, as it did before"
