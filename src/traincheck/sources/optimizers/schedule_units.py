"""Finds schedules that are as long as the run, but in another unit than the one in which the trainer steps them.

Note [The unit of a schedule]
A length does not say what it counts: `T_max=20` may be epochs or updates. A trainer declares both (declared_runs.py).
A schedule whose length is exactly the number of epochs, although the trainer steps it with each update, is meant for
epochs. The same holds for the number of updates, or of micro-batches, if the trainer steps it in another unit. No other
length is judged: a trial, a cycle, and a schedule for a longer run have lengths of their own. The length of a cycle
that fits into an epoch once or twice is not judged either.

A schedule is noted at the first update. It is reported if it has moved by the next update as the trainer says, because
a program may step it by itself as well. A warm-up has a length of its own, and a schedule that was restored from a
checkpoint may have that of an earlier run.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

from traincheck.sources.optimizers.declared_runs import EPOCHS, UPDATES, DeclaredRun, declared_run
from traincheck.sources.recording.listener import RecorderListener
from traincheck.sources.recording.recorder import Recorder
from traincheck.vocab.builtin_rules import SCHEDULER, UNIT
from traincheck.vocab.events import NO_CALL, Reading
from traincheck.vocab.facts import facts

MAX_LOOKS = 3
"""Updates after a scheduler was built in which a trainer is looked for."""

LEAST_LENGTH = 2
"""A schedule of one step shows no unit."""


class _Origin(NamedTuple):
    """A scheduler that the program built: its name, and where."""

    name: str
    site: str


class _Contradiction(NamedTuple):
    """A scheduler in another unit: the origin of the part that has the length, the steps that the trainer makes until
    the next update, and the text of the finding."""

    scheduler: weakref.ref[Any]
    origin: _Origin
    steps: int
    text: str


class ScheduleUnits(RecorderListener):
    """Follows the first updates after a scheduler was built."""

    def __init__(self, source: str, recorder: Recorder, length_of: Callable[[Any], int | None]) -> None:
        self._recorder = recorder
        self._length_of = length_of
        self._origins: weakref.WeakKeyDictionary[Any, _Origin] = weakref.WeakKeyDictionary()
        self._noted: list[_Contradiction] = []
        self._looks = 0
        self._follow = recorder.guarded(source, self._update_ends, always=True)

    def built(self, scheduler: Any, name: str, site: str) -> None:
        """Note that the program builds a scheduler."""
        self._origins[scheduler] = _Origin(name, site)
        self._looks = 0
        self._recorder.add_listener(self)

    def optimizer_stepped(self) -> None:
        self._follow()

    def _update_ends(self) -> None:
        if self._noted:
            for contradiction in self._noted:
                self._judge(contradiction)
            self._stop()
            return
        self._looks += 1
        run = declared_run()
        if run is not None:
            self._noted = self._contradictions(run)
        if not self._noted and (run is not None or self._looks >= MAX_LOOKS):
            self._stop()

    def _stop(self) -> None:
        self._noted = []
        self._recorder.remove_listener(self)

    def _contradictions(self, run: DeclaredRun) -> list[_Contradiction]:
        noted = []
        for scheduler, unit in run.schedulers:
            lengths = self._lengths_of(scheduler)
            if _position(scheduler) != 0 or run.lengths.get(unit) in lengths:
                continue
            for other in sorted(run.chosen - {unit}):
                length = run.lengths[other]
                is_cycle = unit == UPDATES and (length in run.epoch or 2 * length in run.epoch)
                if length in lengths and not is_cycle:
                    text = _text(length, other, unit, run.lengths.get(unit))
                    steps = 1 if unit == UPDATES else 0
                    noted.append(_Contradiction(weakref.ref(scheduler), lengths[length], steps, text))
                    break
        return noted

    def _lengths_of(self, scheduler: Any) -> dict[int, _Origin]:
        """The lengths that a scheduler announces, each with the origin of its part.

        Schedulers that run together have a length each. A sequence has that of all its parts. After a warm-up alone,
        the last part may be meant for the whole run as well. (After a constant rate, it is a decay at the end.)
        """
        attributes = getattr(scheduler, "__dict__", {})
        parts, ends = attributes.get("_schedulers"), attributes.get("_milestones")
        if isinstance(parts, list | tuple) and parts:
            if not ends:
                return {length: origin for part in parts for length, origin in self._lengths_of(part).items()}
            last = self._lengths_of(parts[-1])
            whole = {ends[-1] + length: origin for length, origin in last.items()}
            return last | whole if len(parts) == 2 and _rises(parts[0]) else whole
        length, origin = self._length_of(scheduler), self._origins.get(scheduler)
        if origin is None or length is None or length < LEAST_LENGTH or "factor" in attributes or _rises(scheduler):
            return {}
        return {length: origin}

    def _judge(self, contradiction: _Contradiction) -> None:
        scheduler = contradiction.scheduler()
        if scheduler is None or _position(scheduler) != contradiction.steps:
            return
        name, site = contradiction.origin
        seq = self._recorder.next_seq()
        reading = Reading(seq, NO_CALL, name, SCHEDULER, UNIT, contradiction.text, context=facts(site=site))
        self._recorder.record_reading(reading)


def _position(scheduler: Any) -> int | None:
    """The number of steps that a scheduler has made. Some that combine others do not count, and their parts do."""
    attributes = getattr(scheduler, "__dict__", {})
    position, parts = attributes.get("last_epoch"), attributes.get("_schedulers")
    if position is None and isinstance(parts, list | tuple) and parts:
        return _position(parts[0])
    return position if isinstance(position, int) else None


def _rises(scheduler: Any) -> bool:
    """Whether a LinearLR rises to the rate of its optimizer."""
    start, end = (getattr(scheduler, f"{name}_factor", None) for name in ("start", "end"))
    return start is not None and end is not None and bool(end >= start)


def _text(length: int, other: str, unit: str, number: int | None) -> str:
    run = "" if number is None else f", and the run has {number} {unit}"
    pace = "after each epoch" if unit == EPOCHS else "after each update"
    return f"it was made for {length} steps, the number of {other} of the run, but the trainer steps it {pace}{run}"
