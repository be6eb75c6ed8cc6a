"""Source `optimizers`: construction, `step` and `zero_grad`, and what they do to parameters, gradients and state."""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from traincheck.sources.base import replace, wrapping
from traincheck.sources.circumstances import circumstances_with
from traincheck.sources.gradients import Gradients, Held, Snapshot, summary
from traincheck.sources.hyperparameters import KEYS, OptimizerReadings, settings
from traincheck.sources.names import class_name, levels
from traincheck.sources.recorder import OpenCall, Recorder
from traincheck.sources.replica_readings import ReplicaReadings
from traincheck.sources.settling import Settling
from traincheck.sources.tensors import SOME, fingerprints, unseen
from traincheck.sources.variables import NOBODY, Catalog, Variable
from traincheck.vocab.demand import Demand
from traincheck.vocab.events import LIFECYCLE, TRAIN, Change
from traincheck.vocab.facts import Facts, facts, merged

PARAMETER_DATA, PARAMETER_GRAD, STATE_DATA = "parameter.data", "parameter.grad", "optimizer_state.data"


class _Before:
    """What a step found: the variables concerned, their gradients and their fingerprints."""

    __slots__ = ("data", "gradients", "held", "rates", "state")

    def __init__(self, held: Sequence[Held], gradients: list[str], rates: dict[int, float]) -> None:
        self.held = held
        self.gradients = gradients
        self.rates = rates
        self.data: list[int | None] = []
        self.state: dict[tuple[int, str], int | None] = {}


class _Open(NamedTuple):
    """A step under way. `frame` is of the function which called our hook: torch tells us of no step that raised."""

    call: OpenCall
    optimizer: str
    before: _Before
    frame: FrameType
    thread: int

    def runs(self) -> bool:
        """Whether the step is still on the stack (of another thread that is not known, so it is taken to be)."""
        return threading.get_ident() != self.thread or _on_stack(self.frame)


def _hooked() -> FrameType:
    """The frame that called our hook: the one of `step` itself."""
    frame = sys._getframe(1)
    while frame.f_globals.get("__name__", "").startswith("traincheck.") and frame.f_back is not None:
        frame = frame.f_back
    return frame


def _on_stack(wanted: FrameType) -> bool:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame is not wanted:
        frame = frame.f_back
    return frame is wanted


class OptimizerSource:
    """Observes every `torch.optim.Optimizer`, through its public step hooks and a wrapped `zero_grad`."""

    name = "optimizers"

    def __init__(self, catalog: Catalog, gradients: Gradients, may_step: Callable[[], None] = lambda: None) -> None:
        self._catalog = catalog
        self._gradients = gradients
        self._may_step = may_step
        self._open: list[_Open] = []

    def offers(self) -> str | None:
        return None

    def attach(self, demand: Demand, recorder: Recorder) -> ExitStack:
        self._demand = demand
        self._recorder = recorder
        self._readings = OptimizerReadings(self._catalog, demand, recorder)
        self._replicas = ReplicaReadings(demand, recorder)
        self._settling = Settling(self._gradients, recorder)
        recorder.late_changes = settle = recorder.guarded(self.name, self._settling.tell)
        recorder.at_end(lambda: settle(TRAIN))
        undo = ExitStack()
        begin = recorder.guarded(self.name, self._step_begins)

        def before_step(optimizer: Any, args: Any, kwargs: Any) -> None:
            self._may_step()
            begin(optimizer, args, kwargs)

        undo.callback(register_optimizer_step_pre_hook(before_step).remove)
        undo.callback(register_optimizer_step_post_hook(recorder.guarded(self.name, self._step_ends)).remove)
        built = recorder.guarded(self.name, self._built)
        replace(undo, Optimizer, "__init__", wrapping(lambda me, *a, **k: me, lambda me, _: built(me), lambda me: None))
        replace(
            undo,
            Optimizer,
            "zero_grad",
            wrapping(
                recorder.guarded(self.name, self._clear_begins),
                recorder.guarded(self.name, self._clear_ends),
                recorder.guarded(self.name, self._clear_failed),
            ),
        )
        return undo

    # -- construction ----------------------------------------------------------------------------------------------

    def _built(self, optimizer: Any) -> None:
        name = self._catalog.add_optimizer(optimizer)
        steps = self._recorder.steps
        steps.optimizer_built(name, self._recorder.next_seq())
        weakref.finalize(optimizer, steps.optimizer_gone, name).atexit = False
        call_levels = levels(type(optimizer), "__init__", Optimizer)
        if self._demand.wants_call(call_levels):
            with unseen():
                told = settings(optimizer.param_groups[0]) if optimizer.param_groups else {}
            told.pop(KEYS, None)
            args = facts(**{**told, "class": class_name(type(optimizer))})
            call = self._recorder.enter(LIFECYCLE, call_levels, name, args=args)
            if self._replicas.wanted:
                with unseen():
                    self._catalog.refresh_holders()
                    held = [(v, t) for v, t in self._catalog.living() if name in v.holders]
                    self._replicas.built(held, call.seq)
            self._recorder.leave(call)

    # -- step ------------------------------------------------------------------------------------------------------

    def _step_begins(self, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        recorder, catalog = self._recorder, self._catalog
        name = catalog.add_optimizer(optimizer)
        call_levels = levels(type(optimizer), "step", Optimizer)
        if self._open and self._open[-1].optimizer == name and self._runs(self._open[-1]):
            return  # the step of a subclass that calls its base class's
        opened: list[_Open] = []
        recorder.steps.update_begins(name, recorder.next_seq(), lambda: any(map(self._runs, opened)))
        with unseen():
            catalog.refresh_holders()
            held = [(v, t) for v, t in catalog.living() if name in v.holders or (not v.holders and t.requires_grad)]
            found = self._gradients.read(held, values=False).states
            rates = _learning_rates(optimizer)
        closure = any(arg is not None for arg in (*args[1:], kwargs.get("closure")))  # args[0] is the optimizer
        before = _Before(held, self._gradients.used(name, held, found, closure=closure), rates)
        own = [state for (v, _), state in zip(held, before.gradients, strict=True) if name in v.holders]
        context = circumstances_with(
            closure=closure,
            grads=summary(own),
            lr=_told_rate(max(rates.values(), default=0.0)),
        )
        call = recorder.enter(LIFECYCLE, call_levels, name, context)
        with unseen():
            if self._demand.wants_call(call_levels):  # whatever state is wanted: the facts of the call rest on it
                before.data = fingerprints([tensor for _, tensor in held])
            if self._demand.wants_state(call_levels, STATE_DATA):
                before.state = _state_fingerprints(optimizer, held)
            if before.data and self._demand.wants_state(call_levels, PARAMETER_DATA):
                rate = max(rates.values(), default=0.0)
                self._settling.update_begins(name, held, before.data, before.gradients, rate)
            if before.data and self._replicas.wanted:
                self._replicas.step_begins(held, before.data, before.gradients, call.seq)
        self._readings.step_begins(optimizer, name, call.seq)
        opened.append(_Open(call, name, before, _hooked(), threading.get_ident()))
        self._open.extend(opened)

    def _runs(self, step: _Open) -> bool:
        """Whether `step` still runs; the call of one that raised is closed."""
        if step.runs():
            return True
        if step in self._open:
            self._open.remove(step)
            self._recorder.abandon(step.call)
        return False

    def _step_ends(self, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        name = self._catalog.add_optimizer(optimizer)
        if not self._open or self._open[-1].optimizer != name or self._open[-1].frame is not _hooked():
            return
        call, _, before, *_ = self._open.pop()
        with unseen():
            if before.data:
                self._tell_data(call, name, before)
            if self._demand.wants_state(call.levels, STATE_DATA):
                self._tell_state(call, name, before, optimizer)
        self._readings.step_ends(optimizer, name, call.seq)
        self._settling.update_ends()
        self._gradients.step_ends(name)
        self._recorder.leave(call)
        self._recorder.steps.update_ends(name)

    def _tell_data(self, call: OpenCall, name: str, before: _Before) -> None:
        after = fingerprints([tensor for _, tensor in before.held])
        own: set[str] = set()
        wanted = self._demand.wants_state(call.levels, PARAMETER_DATA)
        for place, (variable, tensor) in enumerate(before.held):
            gradient = before.gradients[place]
            changed = before.data[place] != after[place]
            if variable.held_by(name) == NOBODY and not self._concerned(variable, gradient):
                continue
            lost = not changed and gradient == SOME and _lost_in_rounding(tensor, before.rates.get(id(tensor)))
            if name in variable.holders:
                own.add("changed" if changed else "lost" if lost else gradient)
            if not wanted:
                continue
            self._recorder.change(
                Change(
                    seq=self._recorder.next_seq(),
                    call=call.seq,
                    variable=variable.name,
                    kind="parameter",
                    attribute="data",
                    before=SOME,
                    after=SOME,
                    changed=changed,
                    owner=variable.owner,
                    context=_step_facts(variable, tensor, name, gradient, before.rates, lost=lost),
                    fingerprint=after[place],
                )
            )
        call.context = merged(call.context, lost="lost" in own and not own & {"changed", SOME})

    def _concerned(self, variable: Variable, gradient: str) -> bool:
        """Whether an update should have been of a variable that no optimizer holds: its gradient is of this step. (What
        an earlier model was left with is nobody's concern.)"""
        return variable in self._gradients.fresh if gradient == SOME else variable.owned

    def _tell_state(self, call: OpenCall, name: str, before: _Before, optimizer: Any) -> None:
        after = _state_fingerprints(optimizer, before.held)
        for (place, entry), digest in after.items():
            variable, tensor = before.held[place]
            old = before.state.get((place, entry))
            self._recorder.change(
                Change(
                    seq=self._recorder.next_seq(),
                    call=call.seq,
                    variable=f"{variable.name}:{entry}",
                    kind="optimizer_state",
                    attribute="data",
                    before="none" if old is None else SOME,
                    after=SOME,
                    changed=old != digest,
                    owner=name,
                    context=_step_facts(variable, tensor, name, before.gradients[place], before.rates),
                    fingerprint=digest,
                )
            )

    # -- zero_grad -------------------------------------------------------------------------------------------------

    def _clear_begins(self, optimizer: Any, set_to_none: bool = True) -> tuple[OpenCall, str, Snapshot] | None:
        catalog = self._catalog
        call_levels = levels(type(optimizer), "zero_grad", Optimizer)
        if not self._demand.wants_call(call_levels) and not self._demand.wants_state(call_levels, PARAMETER_GRAD):
            return None
        name = catalog.add_optimizer(optimizer)
        with unseen():
            catalog.refresh_holders()
            held = [(v, t) for v, t in catalog.living() if name in v.holders]
            snapshot = self._gradients.read(held, values=False)
        context = circumstances_with(set_to_none=bool(set_to_none), grads=summary(snapshot.states))
        return self._recorder.enter(LIFECYCLE, call_levels, name, context), name, snapshot

    def _clear_ends(self, token: tuple[OpenCall, str, Snapshot], result: Any) -> None:
        call, name, snapshot = token
        with unseen():
            self._gradients.compare(snapshot, call.seq, name)
        self._recorder.leave(call)

    def _clear_failed(self, token: tuple[OpenCall, str, Snapshot]) -> None:
        self._recorder.abandon(token[0])


NEGLIGIBLE = 16 * torch.finfo(torch.float32).eps
"""Below this learning rate (2e-6) the update of a value near one may be lost in rounding, and nothing is wrong."""


def _learning_rates(optimizer: Any) -> dict[int, float]:
    """The learning rate of each parameter (by identity), that of its group."""
    found: dict[int, float] = {}
    for group in optimizer.param_groups:
        rate = float(group.get("lr", 1.0))
        found.update((id(param), rate) for param in group["params"])
    return found


def _told_rate(rate: float | None) -> str:
    if rate is None:
        return "none"
    return "positive" if rate >= NEGLIGIBLE else "negligible" if rate > 0 else "zero"


def _lost_in_rounding(tensor: torch.Tensor, rate: float | None) -> bool:
    """Whether no element of the parameter could change by learning rate times gradient. Call under `unseen`.

    Asked only where a parameter did not change: it is the one honest reason not to, and not worth its cost elsewhere.
    """
    gradient = tensor.grad
    if gradient is None or rate is None or not tensor.is_floating_point() or gradient.layout is not torch.strided:
        return False
    smallest = torch.finfo(tensor.dtype).eps * tensor.abs()
    return bool(((gradient.to(tensor.dtype) * rate).abs() <= smallest).all())


_told: dict[tuple[Facts, str, str, bool], Facts] = {}


def _step_facts(
    variable: Variable,
    tensor: torch.Tensor,
    optimizer: str,
    gradient: str,
    rates: dict[int, float],
    *,
    lost: bool = False,
) -> Facts:
    base = variable.facts(tensor, variable.held_by(optimizer))
    lr = _told_rate(rates.get(id(tensor)))
    key = (base, gradient, lr, lost)
    found = _told.get(key)
    if found is None:
        found = _told[key] = merged(base, grad=gradient, lr=lr, lost=lost)
    return found


def _state_fingerprints(optimizer: Any, held: Sequence[Held]) -> dict[tuple[int, str], int | None]:
    """Fingerprints of the tensors that the optimizer keeps for each variable, by (place, entry)."""
    keys: list[tuple[int, str]] = []
    tensors: list[torch.Tensor] = []
    for place, (_, tensor) in enumerate(held):
        for entry, value in (optimizer.state.get(tensor) or {}).items():  # None for a shard of another rank
            if isinstance(value, torch.Tensor):
                keys.append((place, str(entry)))
                tensors.append(value)
    return dict(zip(keys, fingerprints(tensors), strict=True))
