"""Check that parameters which changed every k training steps go on doing so.

The program decides in which steps parameters change; to keep the interval is an optional practice. An interval is
expected after `ESTABLISHED` periods of the same length in this very run. A broken interval is reported once, and has to
be established again. It also has to after a step whose updates need not show (the learning rate or all gradients are
zero). Only steps with an optimizer step count. (A learning rate has no regular interval: schedules end, pause and
restart.)
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
"""Changes that have an interval of their own. (When buffers change follows from the modes of the modules.)"""

ESTABLISHED = 4
"""Periods of one length before they count as an interval: one more than for a regular call, because values may stand
still for other reasons."""
LONGEST = 64
"""Longer periods are epochs, of which few runs have enough."""


@dataclass(slots=True)
class _Interval:
    """The step of the last change, the length of the period, and how many periods of that length followed each
    other."""

    last: int
    period: int = 0
    seen: int = 0

    def tick(self, now: int, changed: bool) -> bool | None:
        """Record one step, and return whether it kept the interval; None if the interval says nothing about this
        step."""
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
    """Counts training steps, and keeps the interval of each quantity."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        self._intervals: dict[str, _Interval] = {}
        self._now = 0

    def occasions(self, window: Window) -> Iterator[Occasion]:
        """Yield one occasion for each quantity whose interval expects a change in this step, or no change yet."""
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
