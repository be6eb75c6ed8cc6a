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

from traincheck.relations.base import context_of, outcome_of
from traincheck.relations.parts import UPDATE
from traincheck.vocab.demand import Demand
from traincheck.vocab.events import TRAIN, Change, Window
from traincheck.vocab.occasion import Occasion, Property, Subject
from traincheck.vocab.properties import KEEPS_INTERVAL

GRAIN = "rhythm"
_CHANGES = {"parameter.data": UPDATE}
"""Changes that have a rhythm of their own. (When buffers change follows from the modules' modes.)"""

ESTABLISHED = 4
"""Periods of one length before it counts as a rhythm: one more than for a regular call, since what is read may
stand still for reasons of its own."""
LONGEST = 64
"""Periods of more steps are epochs, of which few runs have enough."""


@dataclass(slots=True)
class _Interval:
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
    variable_facts = dict(change.context)
    quiet = variable_facts.get("lr") in ("zero", "negligible", "none") or variable_facts.get("grad") in (
        "zero",
        "unused",
    )
    return quiet or variable_facts.get("lost") is True


class UpdateIntervals:
    """Counts training steps, and keeps a beat for each kind of thing."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        self._intervals: dict[str, _Interval] = {}
        self._now = 0

    def occasions(self, window: Window) -> Iterator[Occasion]:
        """One occasion for each thing whose rhythm says that it changes in this step, or that it does not yet."""
        updates = [call.seq for call in window.calls if call.levels[-1] == UPDATE]
        if not updates:
            return
        changed: dict[str, int] = {}
        quiet: dict[str, bool] = {}
        latest: dict[str, int] = {}
        for change, positions in window.change_groups:
            quantity, call = f"{change.kind}.{change.attribute}", window.by_seq.get(change.call)
            if call is not None and call.levels[-1] == _CHANGES.get(quantity):
                if change.changed and positions[-1] >= latest.get(quantity, 0):
                    changed[quantity], latest[quantity] = change.call, positions[-1]
                quiet[quantity] = quiet.get(quantity, True) and _need_not_show(change)
        if window.stage != TRAIN:
            return
        for quantity in quiet.keys() - changed.keys():
            if quiet[quantity]:
                self._intervals.pop(quantity, None)
        self._now += 1
        for quantity in sorted(self._intervals.keys() | changed.keys()):
            interval = self._intervals.get(quantity)
            if interval is None:
                self._intervals[quantity] = _Interval(self._now)
                continue
            kept = interval.tick(self._now, quantity in changed)
            if kept is not None:
                seq = changed.get(quantity, updates[0])
                judged = outcome_of(Property(KEEPS_INTERVAL, quantity), bool(kept))
                yield Occasion(Subject(quantity, GRAIN), context_of((), window.stage), *judged, seq)

    @staticmethod
    def speaks_of(subject: Subject) -> bool:
        return subject.grain == GRAIN

    @staticmethod
    def needs(subject: Subject, prop: Property) -> Demand:
        call = _CHANGES[subject.api]
        return Demand.of_calls(UPDATE) | Demand.of_calls(call, changes=(subject.api,))

    @staticmethod
    def is_optional_practice(prop: Property) -> bool:
        return prop.verb == KEEPS_INTERVAL

    @staticmethod
    def describe(subject: Subject, prop: Property) -> str:
        return "some parameter goes on changing every so many updates, as it did before"
