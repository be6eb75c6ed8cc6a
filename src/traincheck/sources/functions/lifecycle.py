"""Source `lifecycle`: records schedulers, gradient scaling, autocast and gradient-mode regions, seeds, and loading of
files.

Each is a wrapped function or method; the tables below are the complete list.
"""

from __future__ import annotations

import functools
import importlib
import weakref
from contextlib import ExitStack
from typing import Any, NamedTuple

import torch

from traincheck.sources.base import around_block, replace, replace_everywhere, wrapping
from traincheck.sources.gradients.gradients import Gradients, Snapshot
from traincheck.sources.modules.variables import VariableCatalog
from traincheck.sources.optimizers.schedulers import ScheduleReadings
from traincheck.sources.recording.api_names import levels
from traincheck.sources.recording.context_facts import context_facts
from traincheck.sources.recording.listener import RecorderListener
from traincheck.sources.recording.patches import UndoStack
from traincheck.sources.recording.recorder import OpenCall, Recorder
from traincheck.sources.tensors.deferred_values import DeferredValue, is_on_host
from traincheck.sources.tensors.reading import hidden_from_modes, local_tensor
from traincheck.vocab.builtin_rules import AUTOCAST, IDLE_REGION
from traincheck.vocab.demand import Demand
from traincheck.vocab.events import LIFECYCLE, REGION
from traincheck.vocab.facts import FactValue, facts

FUNCTIONS: tuple[tuple[str, str], ...] = (
    ("torch", "manual_seed"),
    ("torch", "load"),
)
"""Functions, by the public module that offers them."""

REGIONS: tuple[tuple[str, str, str], ...] = (
    ("torch.amp.autocast_mode", "autocast", "torch.autocast"),
    ("torch.autograd.grad_mode", "no_grad", "torch.no_grad"),
    ("torch.autograd.grad_mode", "inference_mode", "torch.inference_mode"),
)
"""Context managers: a call lasts from entry to exit."""

AUTOCAST_API = "torch.autocast"
"""The region that another source follows as well, see `RecorderListener.autocast_changed`."""

SCALER_METHODS = ("scale", "unscale_", "step", "update")
UNKNOWN_SCALE = 0.0
"""Stands for an unknown scale; no scaler can have it."""


class _Scaling(NamedTuple):
    """A scaler method under way: its call where recorded, gradients and scale where read, and the optimizer it
    steps."""

    call: OpenCall | None
    before: Snapshot | None
    scale: float | DeferredValue
    optimizer: str


class LifecycleSource(RecorderListener):
    """Observes the functions, regions, schedulers and scalers named in this file."""

    name = "lifecycle"

    def __init__(self, catalog: VariableCatalog, gradients: Gradients) -> None:
        self._catalog = catalog
        self._gradients = gradients
        self._regions: dict[int, OpenCall] = {}
        self._names: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
        self._counts: dict[str, int] = {}
        self._schedules: ScheduleReadings

    def offers(self) -> str | None:
        return None

    def attach(self, demand: Demand, recorder: Recorder) -> ExitStack:
        self._demand = demand
        self._recorder = recorder
        undo = UndoStack()
        self._reports_autocast = demand.takes_reading(AUTOCAST, IDLE_REGION)
        for home, name in FUNCTIONS:
            if demand.records_call((f"{home}.{name}",)):
                self._wrap_function(undo, home, name)
        for home, name, api in REGIONS:
            if demand.records_call((api,)) or (api == AUTOCAST_API and self._reports_autocast):
                self._wrap_region(undo, home, name, api)
        self._wrap_schedulers(undo)
        self._wrap_scaler(undo)
        for key, call in list(self._regions.items()):
            if not demand.records_call(call.levels):  # entered under a larger demand
                recorder.drop_call(self._regions.pop(key))
        recorder.after_gap(self.name, self._regions.clear, undo=undo)
        return undo

    # -- functions -------------------------------------------------------------------------------------------------

    def _wrap_function(self, undo: UndoStack, home: str, name: str) -> None:
        call_levels = (f"{home}.{name}",)
        recorder = self._recorder

        def begins(*args: Any, **kwargs: Any) -> OpenCall:
            return recorder.enter(LIFECYCLE, call_levels, "", context_facts(), _flags(kwargs))

        def ends(call: OpenCall, result: Any) -> None:
            recorder.leave(call)

        guarded = recorder.guarded
        decorate = wrapping(guarded(self.name, begins), guarded(self.name, ends), guarded(self.name, recorder.abandon))
        replace_everywhere(undo, home, name, decorate)

    # -- regions ---------------------------------------------------------------------------------------------------

    def _wrap_region(self, undo: UndoStack, home: str, name: str, api: str) -> None:
        cls = getattr(importlib.import_module(home), name)
        recorder, regions = self._recorder, self._regions

        records, reports = self._demand.records_call((api,)), api == AUTOCAST_API and self._reports_autocast

        def entered(region: Any) -> None:
            if records and recorder.watching and not recorder.updating:
                regions[id(region)] = recorder.enter(REGION, (api,), "", context_facts())
            if reports:
                recorder.autocast_changed(entered=True)

        def left(region: Any) -> None:
            call = regions.pop(id(region), None)
            if call is not None:
                recorder.leave(call)
            if reports:
                recorder.autocast_changed(entered=False)

        guarded = functools.partial(recorder.guarded, self.name, always=reports)
        around_block(undo, cls, guarded(entered), guarded(left), only_watched=not reports)

    # -- schedulers ------------------------------------------------------------------------------------------------

    def _wrap_schedulers(self, undo: UndoStack) -> None:
        from torch.optim import lr_scheduler

        base = lr_scheduler.LRScheduler
        recorder = self._recorder
        if recorder.reattaching:
            self._schedules.set_demand(self._demand)
        else:
            self._schedules = ScheduleReadings(self._catalog, self._demand, recorder)
        readings = self._schedules
        recorder.at_end(recorder.guarded(self.name, readings.report_unstepped))

        def begins(scheduler: Any, *args: Any, **kwargs: Any) -> tuple[OpenCall, Any] | None:
            call_levels = levels(type(scheduler), "step", base)
            optimizer = getattr(scheduler, "optimizer", None)
            # A scheduler takes its first step while it is built; the training loop does not.
            if optimizer is None or not _built(scheduler):
                if optimizer is not None:
                    readings.built(scheduler, self._name_of(scheduler), optimizer)
                return None
            readings.stepped(optimizer)
            if not self._demand.records_call(call_levels):
                return None
            call = recorder.enter(LIFECYCLE, call_levels, self._name_of(scheduler), context_facts())
            return call, scheduler

        def ends(token: tuple[OpenCall, Any], result: Any) -> None:
            call, scheduler = token
            readings.step_ends(scheduler, call.receiver, call.seq)
            recorder.leave(call)

        def failed(token: tuple[OpenCall, Any]) -> None:
            recorder.abandon(token[0])

        def after(scheduler: Any) -> None:
            token = begins(scheduler)
            if token is not None:
                ends(token, None)

        guarded = recorder.guarded
        self._record_step = guarded(self.name, after)
        recorder.add_listener(self)
        decorate = wrapping(guarded(self.name, begins), guarded(self.name, ends), guarded(self.name, failed))
        for cls in _classes_with_step(base):
            replace(undo, cls, "step", decorate)

        def combined(scheduler: Any, _: None) -> None:  # it takes no step while it is built
            readings.combined(scheduler, self._name_of(scheduler))

        decorate = wrapping(
            lambda scheduler, *args, **kwargs: scheduler, guarded(self.name, combined), lambda token: None
        )
        for cls in (lr_scheduler.SequentialLR, lr_scheduler.ChainedScheduler):
            replace(undo, cls, "__init__", decorate)

    def scheduler_stepped(self, scheduler: Any) -> None:
        self._record_step(scheduler)

    def _name_of(self, instance: Any) -> str:
        """Return a name for a scheduler or scaler: its class, numbered from the second instance on."""
        name = self._names.get(instance)
        if name is None:
            base = type(instance).__name__
            self._counts[base] = count = self._counts.get(base, 0) + 1
            name = self._names[instance] = base if count == 1 else f"{base}#{count}"
        return name

    # -- gradient scaler -------------------------------------------------------------------------------------------

    def _wrap_scaler(self, undo: UndoStack) -> None:
        scaler_class = torch.amp.GradScaler
        recorder, gradients = self._recorder, self._gradients
        for method in SCALER_METHODS:
            begins = functools.partial(self._scaler_begins, method)

            def ends(scaling: _Scaling, result: Any) -> None:
                if scaling.call is not None and scaling.before is not None and recorder.watching:
                    with hidden_from_modes():
                        gradients.compare(scaling.before, scaling.call.seq, scale=scaling.scale)
                if scaling.call is not None:
                    recorder.leave(scaling.call)
                if scaling.optimizer:
                    recorder.steps.update_ends(scaling.optimizer)

            def failed(scaling: _Scaling) -> None:
                if scaling.call is not None:
                    recorder.abandon(scaling.call)
                if scaling.optimizer:
                    recorder.steps.update_failed()

            guarded = functools.partial(recorder.guarded, self.name, always=True)
            replace(undo, scaler_class, method, wrapping(guarded(begins), guarded(ends), guarded(failed)))

    def _scaler_begins(
        self, method: str, scaler: Any, optimizer: Any = None, *args: Any, **kwargs: Any
    ) -> _Scaling | None:
        recorder, api = self._recorder, (f"torch.amp.GradScaler.{method}",)
        name, call, before = "", None, None
        scale: float | DeferredValue = UNKNOWN_SCALE
        if method == "step":  # steps are counted under any demand
            name = self._catalog.add_optimizer(optimizer)
            recorder.steps.update_begins(name, recorder.next_seq())
        if recorder.watching and _scales(scaler) and self._demand.records_call(api):
            if method == "unscale_" and self._demand.observes_state(api, "parameter.grad"):
                with hidden_from_modes():
                    before = self._gradients.read(self._gradients.trainable(), values=True, scaled=True)
                    scale = _scale_of(scaler)
            call = recorder.enter(LIFECYCLE, api, self._name_of(scaler), context_facts())
        return _Scaling(call, before, scale, name) if call or name else None


def _scales(scaler: Any) -> bool:
    """Return whether the scaler is enabled. A disabled scaler changes nothing, so its calls are not recorded."""
    return bool(getattr(scaler, "_enabled", True))


def _scale_of(scaler: Any) -> float | DeferredValue:
    """Return the current factor of the scaler, `UNKNOWN_SCALE` without one. Call under `hidden_from_modes`."""
    scale = getattr(scaler, "_scale", None)
    if not isinstance(scale, torch.Tensor) or local_tensor(scale) is None or scale.numel() != 1:
        return UNKNOWN_SCALE
    return float(scale) if is_on_host(scale) else DeferredValue((scale.detach().clone(),), float)


def _built(scheduler: Any) -> bool:
    """Return whether the scheduler is fully built: torch counts the step taken in its constructor as the first."""
    return int(getattr(scheduler, "_step_count", 1)) > 0


def _classes_with_step(base: type) -> list[type]:
    """Return `base` and all its subclasses that define `step` themselves."""
    classes, pending = [], [base]
    while pending:
        cls = pending.pop()
        if "step" in vars(cls):
            classes.append(cls)
        pending.extend(cls.__subclasses__())
    return classes


def _flags(kwargs: dict[str, Any]) -> tuple[tuple[str, FactValue], ...]:
    """Return the flags among the keyword arguments."""
    return facts(**{key: value for key, value in kwargs.items() if isinstance(value, bool)})
