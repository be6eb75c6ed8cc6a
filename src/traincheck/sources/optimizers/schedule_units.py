"""Finds schedules that are as long as the run, but in another unit than the one in which they are stepped.

Note [The unit of a schedule]
A length does not say what it counts: `T_max=20` may be epochs or updates. A trainer declares both (declared_runs.py),
and so do the loops of a program (declared_loops.py). A schedule whose length is exactly the number of epochs, although
it is stepped with each update, is meant for epochs. The same holds for the number of updates, or of micro-batches, if
it is stepped in another unit, or never. No other length is judged: a trial, a cycle, and a schedule for a longer run
have lengths of their own. The length of a cycle that fits into an epoch once or twice is not judged either.

With a trainer, a schedule is noted at the first update. It is reported if it has moved by the next update as the
trainer says, because a program may step it by itself as well. In a loop of the program, it shows at the second update
of its optimizer whether it has moved. If it has not, its step must be missing in the body of the innermost loop,
because a program may begin late to step it. If the program changes the rate by itself, nothing is reported either.

A warm-up has a length of its own, and a schedule that was restored from a checkpoint may have that of an earlier run.
"""

from __future__ import annotations

import math
import sys
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

from torch.amp import GradScaler
from torch.optim import Optimizer

from traincheck.sources.optimizers.declared_loops import Place, loops_around, places
from traincheck.sources.optimizers.declared_runs import BATCHES, EPOCHS, UPDATES, DeclaredRun, declared_run
from traincheck.sources.recording.listener import RecorderListener
from traincheck.sources.recording.recorder import Recorder
from traincheck.vocab.builtin_rules import SCHEDULER, UNIT
from traincheck.vocab.events import NO_CALL, Reading
from traincheck.vocab.facts import facts

MAX_LOOKS = 3
"""Updates after a scheduler was built in which a trainer is looked for."""

MAX_UPDATES = 12
"""Updates after a scheduler was built among which the first two of its optimizer are looked for."""

LEAST_LENGTH = 2
"""A schedule of one step shows no unit."""


class _Origin(NamedTuple):
    """A scheduler that the program built: its name, and where."""

    name: str
    site: str
    around: list[Place]


class _Contradiction(NamedTuple):
    """A scheduler in another unit: the origin of the part that has the length, the text of the finding, and the steps
    that a trainer makes until the next update."""

    scheduler: weakref.ref[Any]
    origin: _Origin
    text: str
    steps: int = 0


class _FirstUpdate(NamedTuple):
    """The first update of a scheduler's optimizer: its step, the backwards and fetches of loaders so far, and the rates
    and the position of the scheduler."""

    step: int
    backwards: int
    fetches: int
    rates: list[Any]
    position: int


class ScheduleUnits(RecorderListener):
    """Follows the first updates after a scheduler was built.

    `length_of` gives the length that a scheduler announces, `numbers_of` the numbers in its functions, and `name_of`
    the name of an optimizer.
    """

    def __init__(
        self,
        source: str,
        recorder: Recorder,
        length_of: Callable[[Any], int | None],
        numbers_of: Callable[[Any], set[int]],
        name_of: Callable[[Any], str],
    ) -> None:
        self._recorder = recorder
        self._length_of, self._numbers_of = length_of, numbers_of
        self._name_of = name_of
        self._origins: weakref.WeakKeyDictionary[Any, _Origin] = weakref.WeakKeyDictionary()
        self._noted: list[_Contradiction] = []
        self._awaited: weakref.WeakKeyDictionary[Any, _FirstUpdate | None] = weakref.WeakKeyDictionary()
        self._looks = 0
        self._follow = recorder.guarded(source, self._update_ends, always=True)

    def built(self, scheduler: Any, name: str, site: str) -> None:
        """Note that the program builds a scheduler, perhaps of others."""
        for part in _parts(scheduler):
            self._awaited.pop(part, None)
        self._origins[scheduler] = _Origin(name, site, places(sys._getframe(1), self._recorder.sites))
        self._awaited[scheduler] = None
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
        run = declared_run() if self._looks <= MAX_LOOKS else None
        if run is not None:
            self._noted = self._contradictions(run)
            if not self._noted:
                self._stop()
            return
        self._follow_loops()
        if not self._awaited or self._looks >= MAX_UPDATES:
            self._stop()

    def _stop(self) -> None:
        self._noted = []
        self._awaited.clear()
        self._recorder.remove_listener(self)

    def _follow_loops(self) -> None:
        """Judge the schedulers whose optimizer has made its second update, in a loop of the program."""
        steps = self._recorder.steps
        for scheduler, first in list(self._awaited.items()):
            step, position = steps.last_steps.get(self._name_of(scheduler.optimizer)), _position(scheduler)
            if step is None or (first is not None and step == first.step):
                continue  # the update is that of another optimizer
            rates = [group["lr"] for group in scheduler.optimizer.param_groups if isinstance(group.get("lr"), float)]
            if first is None and position in (0, 1) and (self._lengths_of(scheduler) or self._numbers_of(scheduler)):
                self._awaited[scheduler] = _FirstUpdate(step, steps.backwards, steps.fetches, rates, position)
                continue
            del self._awaited[scheduler]
            if first is None or position is None:
                continue
            if position > first.position or rates == first.rates:
                self._judge_in_loops(scheduler, first, position - first.position)

    def _judge_in_loops(self, scheduler: Any, first: _FirstUpdate, moved: int) -> None:
        """Judge a scheduler by the loops around the second update, and by how far it has moved since the first one."""
        steps = self._recorder.steps
        backwards = steps.backwards - first.backwards
        origin, lengths = self._origins[scheduler], self._lengths_of(scheduler)
        loops = loops_around(sys._getframe(1), self._recorder.sites, origin.around)
        times = [length for length in loops.times if length is not None]
        if not times or len(times) < len(loops.times) or not backwards:
            return
        batches, epochs = math.prod(times), times[0] if len(times) > 1 else 1
        # An incomplete group of micro-batches makes an update, or none, at the end of an epoch or of the run. Backwards
        # of another optimizer look like micro-batches.
        of_epoch, of_run = (
            {rounded(number / backwards) for rounded in (math.floor, math.ceil)} | {number}
            for number in (batches // epochs, batches)
        )
        updates = of_run | {epochs * number for number in of_epoch}
        if moved:
            is_cycle = epochs in of_epoch or 2 * epochs in of_epoch
            unit, length = EPOCHS, epochs
            if loops.has_remainder and 1 < backwards == steps.fetches - first.fetches and moved == 1:
                updates, unit, length, is_cycle = updates - {batches}, BATCHES, batches, False  # they are micro-batches
            if length in lengths and not is_cycle and not updates & lengths.keys():
                text = f"{_made_for(length, unit)}the program steps it after each update"
                self._report(_Contradiction(weakref.ref(scheduler), lengths[length], text))
            return
        if epochs in lengths or not all(isinstance(stepped, Optimizer | GradScaler) for stepped in loops.stepped):
            return
        if not lengths and not self._numbers_of(scheduler) & ({epochs} | of_epoch):  # with these it may count epochs
            lengths = dict.fromkeys(self._numbers_of(scheduler), origin)
        for length in sorted(updates & lengths.keys())[:1]:
            text = _made_for(length, BATCHES if length == batches else UPDATES)
            text += "the loop around the updates does not step it"
            text += "" if epochs == 1 else f", and the run has {epochs} epochs"
            self._report(_Contradiction(weakref.ref(scheduler), lengths[length], text))

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
                    number = run.lengths.get(unit)
                    pace = "after each epoch" if unit == EPOCHS else "after each update"
                    text = f"{_made_for(length, other)}the trainer steps it {pace}"
                    text += "" if number is None else f", and the run has {number} {unit}"
                    steps = 1 if unit == UPDATES else 0
                    noted.append(_Contradiction(weakref.ref(scheduler), lengths[length], text, steps))
                    break
        return noted

    def _lengths_of(self, scheduler: Any) -> dict[int, _Origin]:
        """The lengths that a scheduler announces, each with the origin of its part.

        Schedulers that run together have a length each. A sequence has that of all its parts. After a warm-up alone,
        the last part may be meant for the whole run as well. (After a constant rate, it is a decay at the end.)
        """
        attributes, parts = getattr(scheduler, "__dict__", {}), _parts(scheduler)
        if parts:
            ends = attributes.get("_milestones")
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
        if scheduler is not None and _position(scheduler) == contradiction.steps:
            self._report(contradiction)

    def _report(self, contradiction: _Contradiction) -> None:
        name, site, _ = contradiction.origin
        seq = self._recorder.next_seq()
        reading = Reading(seq, NO_CALL, name, SCHEDULER, UNIT, contradiction.text, context=facts(site=site))
        self._recorder.record_reading(reading)


def _position(scheduler: Any) -> int | None:
    """The number of steps that a scheduler has made. Some that combine others do not count, and their parts do."""
    position, parts = getattr(scheduler, "__dict__", {}).get("last_epoch"), _parts(scheduler)
    if position is None and parts:
        return _position(parts[0])
    return position if isinstance(position, int) else None


def _made_for(length: int, unit: str) -> str:
    return f"it was made for {length} steps, the number of {unit} of the run, but "


def _parts(scheduler: Any) -> list[Any] | tuple[Any, ...]:
    """The schedulers that a scheduler combines."""
    parts = getattr(scheduler, "__dict__", {}).get("_schedulers")
    return parts if isinstance(parts, list | tuple) else ()


def _rises(scheduler: Any) -> bool:
    """Whether a LinearLR rises to the rate of its optimizer."""
    start, end = (getattr(scheduler, f"{name}_factor", None) for name in ("start", "end"))
    return start is not None and end is not None and bool(end >= start)
