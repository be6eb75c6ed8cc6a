"""Readings of learning rate schedulers: their current rate, their progress, and their announced length.

A scheduler that was built for an optimizer and never stepped is reported at the end of a run, unless another one of the
same optimizer was stepped, the run was interrupted, or it ended within the first passes over the data. A program may
begin to step it late.
"""

from __future__ import annotations

import functools
import weakref
from types import FunctionType
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from traincheck.sources.modules.variables import VariableCatalog
from traincheck.sources.optimizers.hyperparameters import plain
from traincheck.sources.recording.frames import captured_values
from traincheck.sources.recording.listener import RecorderListener
from traincheck.sources.recording.recorder import Recorder
from traincheck.sources.recording.run_totals import is_interrupted
from traincheck.sources.recording.step_tracker import Cut
from traincheck.sources.tensors.reading import hidden_from_modes
from traincheck.vocab.builtin_rules import NEVER_STEPPED, SCHEDULER, UNIT
from traincheck.vocab.demand import Demand
from traincheck.vocab.events import ANNOUNCED, LIVE, NO_CALL, Reading
from traincheck.vocab.facts import FactValue, facts

if TYPE_CHECKING:
    from traincheck.sources.optimizers.schedule_units import ScheduleUnits

ENOUGH_PASSES = 2
"""Passes over data that a run has made before a scheduler should have been stepped: one may be an evaluation."""

TOTALS = ("total_steps", "T_max", "total_iters", "num_training_steps")
"""Names that schedulers use for their total number of steps. Schedulers of torch have it as an attribute; those made of
a function (`LambdaLR`) as a bound argument."""

OPEN = ("T_max", "total_iters")
"""The names among `TOTALS` that do not say whether a scheduler step is an update or an epoch."""

_CONTEXT = facts(kind=SCHEDULER)


class _Unstepped(NamedTuple):
    """A scheduler that no call has stepped: its name, and where it was built."""

    name: str
    site: str
    scheduler: weakref.ref[Any]


class ScheduleReadings(RecorderListener):
    """Takes the readings of schedulers at the end of each of their steps."""

    def __init__(self, catalog: VariableCatalog, demand: Demand, recorder: Recorder) -> None:
        self._catalog = catalog
        self._recorder = recorder
        self._unstepped: dict[str, _Unstepped] = {}  # by optimizer
        self._follows = False
        self._units: ScheduleUnits | None = None
        self._announced: weakref.WeakSet[Any] = weakref.WeakSet()
        recorder.after_gap("lifecycle", self._announced.clear, repeatable=True)
        recorder.after_gap("lifecycle", self._forget_uncounted)
        self.set_demand(demand)

    def set_demand(self, demand: Demand) -> None:
        """From now on take the readings that `demand` requests."""
        self._reads_unstepped = demand.takes_reading(SCHEDULER, NEVER_STEPPED)
        self._reads_units = demand.takes_reading(SCHEDULER, UNIT)
        self._attributes = [
            name for name in ("lr", "last_epoch", "total", "span") if demand.takes_reading(SCHEDULER, name)
        ]

    def built(self, scheduler: Any, name: str, optimizer: Any) -> None:
        """Note that the program builds a scheduler."""
        if self._reads_units:
            self._note_unit(scheduler, name)
        if self._reads_unstepped:
            if not self._follows:
                self._follows = True
                self._recorder.add_listener(self)
            stepped = self._catalog.add_optimizer(_without_wrapper(optimizer))
            self._unstepped[stepped] = _Unstepped(name, self._recorder.sites.here(), weakref.ref(scheduler))

    def combined(self, scheduler: Any, name: str) -> None:
        """Note that the program builds a scheduler of others."""
        if self._reads_units:
            self._note_unit(scheduler, name)

    def _note_unit(self, scheduler: Any, name: str) -> None:
        if self._units is None:
            from traincheck.sources.optimizers.schedule_units import ScheduleUnits  # not before a scheduler

            self._units = ScheduleUnits(
                "lifecycle",
                self._recorder,
                lambda schedule: _total(schedule, TOTALS),
                _bound_numbers,
                lambda optimizer: self._catalog.add_optimizer(_without_wrapper(optimizer)),
            )
        self._units.built(scheduler, name, self._recorder.sites.here())

    def stepped(self, optimizer: Any) -> None:
        """Note that the program steps a scheduler of an optimizer."""
        if self._unstepped:
            self._unstepped.pop(self._catalog.add_optimizer(_without_wrapper(optimizer)), None)

    def _forget_uncounted(self) -> None:
        """Forget schedulers that do not count their steps: one may have been in the gap."""
        for optimizer, (_, _, scheduler) in list(self._unstepped.items()):
            if not isinstance(getattr(scheduler(), "last_epoch", None), int):
                self._unstepped.pop(optimizer, None)

    def window_closed(self, cut: Cut) -> None:
        """Forget schedulers that a library steps without their method: it sets the rates itself and counts (ignite)."""
        for optimizer, (_, _, scheduler) in list(self._unstepped.items()):
            if (getattr(scheduler(), "last_epoch", None) or 0) > 0:
                self._unstepped.pop(optimizer, None)

    def report_unstepped(self) -> None:
        """Report schedulers that were never stepped, at the end of the run."""
        if self._recorder.steps.passes_ended < ENOUGH_PASSES or is_interrupted():
            return
        for optimizer, (name, site, _) in self._unstepped.items():
            seq, context = self._recorder.next_seq(), facts(site=site)
            reading = Reading(seq, NO_CALL, name, SCHEDULER, NEVER_STEPPED, optimizer, context=context)
            self._recorder.record_reading(reading)

    def step_ends(self, scheduler: Any, name: str, call: int) -> None:
        """Read a scheduler that has just stepped; `call` is the position of that step."""
        if not self._attributes:
            return
        if scheduler not in self._announced:
            self._announced.add(scheduler)
            self._report(call, name, "total", _total(scheduler, TOTALS), ANNOUNCED)
            self._report(call, name, "span", _total(scheduler, OPEN), ANNOUNCED)
        rates = getattr(scheduler, "_last_lr", None)
        self._report(call, name, "lr", rates[0] if rates else None, LIVE)
        self._report(call, name, "last_epoch", getattr(scheduler, "last_epoch", None), LIVE)

    def _report(self, call: int, name: str, attribute: str, value: Any, role: str) -> None:
        if value is None or attribute not in self._attributes:
            return
        if isinstance(value, torch.Tensor):
            with hidden_from_modes():
                value = plain(value)
        number: FactValue = value
        seq = self._recorder.next_seq()
        self._recorder.record_reading(Reading(seq, call, name, SCHEDULER, attribute, number, role, _CONTEXT))


def _total(scheduler: Any, names: tuple[str, ...]) -> int | None:
    """The number of steps that a scheduler was made for, under one of these names; None if it has none of them."""
    attributes = vars(scheduler)
    bound = [
        function.keywords for function in attributes.get("lr_lambdas", ()) if isinstance(function, functools.partial)
    ]
    for source in (attributes, *bound):
        for name in names:
            value = source.get(name)
            if isinstance(value, int) and not isinstance(value, bool):
                return value
    return None


def _bound_numbers(scheduler: Any) -> set[int]:
    """The integers in the functions of a scheduler that computes its rates with functions of the program."""
    return {number for function in vars(scheduler).get("lr_lambdas", ()) for number in _numbers_in(function)}


def _numbers_in(function: Any) -> list[int]:
    """The integers that are bound to a function, or that it has of the function around it."""
    if isinstance(function, functools.partial):
        held = [*function.args, *function.keywords.values()]
    elif isinstance(function, FunctionType):
        held = [*captured_values(function)]
    else:
        held = []
    return [value for value in held if type(value) is int]


def _without_wrapper(optimizer: Any) -> Any:
    """Return the optimizer that a wrapper of a library (Accelerate) calls: the one with the same parameter groups.

    The wrapper is no second optimizer of its parameters.
    """
    for value in getattr(optimizer, "__dict__", {}).values():
        if isinstance(value, torch.optim.Optimizer) and value.param_groups is optimizer.param_groups:
            return value
    return optimizer
