"""Source `optimizers`: construction, `step` and `zero_grad`, and what they do to parameters, gradients and state."""

from __future__ import annotations

import math
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from traincheck.sources.base import replace, wrapping
from traincheck.sources.distributed.replica_readings import ReplicaReadings
from traincheck.sources.gradients.gradients import Gradients, Snapshot, summary
from traincheck.sources.modules.variables import Catalog, Variable
from traincheck.sources.optimizers import parameter_changes
from traincheck.sources.optimizers.hyperparameters import KEYS, OptimizerReadings, settings
from traincheck.sources.optimizers.master_copies import Settling
from traincheck.sources.optimizers.optimizer_state_changes import KeptStates, witnesses
from traincheck.sources.optimizers.running_updates import (
    Before,
    OpenStep,
    closure_of,
    hooked,
    is_torchs,
    taken_for_none,
)
from traincheck.sources.recording.api_names import class_name, levels
from traincheck.sources.recording.context_facts import circumstances_with, context_with
from traincheck.sources.recording.patches import Undo
from traincheck.sources.recording.recorder import OpenCall, Recorder
from traincheck.sources.tensors.deferred_values import Pending, unlike
from traincheck.sources.tensors.device_transfers import NextSeq
from traincheck.sources.tensors.reading import SOME, ZERO, local, unseen
from traincheck.vocab.bounded_cache import Kept
from traincheck.vocab.demand import COMPUTATION, SOME_STATE, Demand
from traincheck.vocab.events import LIFECYCLE, TRAIN, Change
from traincheck.vocab.facts import Facts, facts, merged

PARAMETER_DATA, PARAMETER_GRAD, STATE_DATA = "parameter.data", "parameter.grad", "optimizer_state.data"


class OptimizerSource:
    """Observes every `torch.optim.Optimizer`, through its public step hooks and a wrapped `zero_grad`."""

    name = "optimizers"

    def __init__(self, catalog: Catalog, gradients: Gradients, may_step: Callable[[], None] = lambda: None) -> None:
        self._catalog = catalog
        self._gradients = gradients
        self._may_step = may_step
        self._open: list[OpenStep] = []
        self._readings: OptimizerReadings
        self._states = KeptStates()
        self._living: dict[str, weakref.ref[Any]] = {}

    def offers(self) -> str | None:
        return None

    def attach(self, demand: Demand, recorder: Recorder) -> ExitStack:
        self._demand = demand
        self._recorder = recorder
        if recorder.changing:
            self._readings.ask(demand)
        else:
            self._readings = OptimizerReadings(self._catalog, demand, recorder)
            self._settling = Settling(self._gradients, recorder)
        self._tells = demand.asks_beside(COMPUTATION)  # of these another source tells
        self._replicas = ReplicaReadings(demand, recorder)
        recorder.late_changes = settle = recorder.guarded(self.name, self._settling.tell)
        recorder.at_end(lambda: settle(TRAIN))
        recorder.after_gap(self.name, self._catalog.refresh_holders)
        recorder.after_gap(self.name, self._states.forget)
        undo = Undo()
        recorder.when_over(undo, self._living.clear)
        begin = recorder.guarded(self.name, self._step_begins, always=True)
        end = recorder.guarded(self.name, self._step_ends, always=True)

        def before_step(optimizer: Any, args: Any, kwargs: Any) -> None:
            self._may_step()
            begin(optimizer, args, kwargs)

        recorder.hooks.add(undo, register_optimizer_step_pre_hook(before_step), begin)
        recorder.hooks.add(undo, register_optimizer_step_post_hook(end), end)
        built = recorder.guarded(self.name, self._built, always=True)
        replace(undo, Optimizer, "__init__", wrapping(lambda me, *a, **k: me, lambda me, _: built(me), lambda me: None))
        told = wrapping(
            recorder.guarded(self.name, self._clear_begins),
            recorder.guarded(self.name, self._clear_ends),
            recorder.guarded(self.name, self._clear_failed),
        )
        replace(undo, Optimizer, "zero_grad", lambda clear: told(recorder.hooks.unasked(clear)))
        return undo

    # -- construction ----------------------------------------------------------------------------------------------

    def _built(self, optimizer: Any) -> None:
        name = self._catalog.add_optimizer(optimizer)
        steps = self._recorder.steps
        steps.optimizer_built(name, self._recorder.next_seq())
        gone = self._recorder.guarded(self.name, lambda _: self._gone(name))
        self._living[name] = weakref.ref(optimizer, gone)
        call_levels = levels(type(optimizer), "__init__", Optimizer)
        if self._recorder.watching and self._demand.wants_call(call_levels):
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

    def _gone(self, name: str) -> None:
        self._living.pop(name, None)
        self._states.gone(name)
        self._recorder.steps.optimizer_gone(name)

    # -- step ------------------------------------------------------------------------------------------------------

    def _step_begins(self, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        recorder, catalog = self._recorder, self._catalog
        name = catalog.add_optimizer(optimizer)
        call_levels = levels(type(optimizer), "step", Optimizer)
        if self._open and self._open[-1].optimizer == name and self._runs(self._open[-1]):
            return  # the step of a subclass that calls its base class's
        opened: list[OpenStep] = []
        recorder.steps.update_begins(name, recorder.next_seq(), lambda: any(map(self._runs, opened)))
        tells = recorder.watching and self._tells
        told = self._tell_begins(optimizer, name, call_levels, args, kwargs) if tells else (None, None)
        # What an optimizer of torch's computes is its own affair; one with a closure calls what is not.
        aside = recorder.watching and is_torchs(optimizer) and closure_of(args, kwargs) is None
        opened.append(OpenStep(told[0], name, told[1], hooked(), threading.get_ident(), aside))
        self._open.extend(opened)
        if aside:
            recorder.aside.begin()

    def _tell_begins(
        self, optimizer: Any, name: str, call_levels: tuple[str, ...], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[OpenCall, Before]:
        """Read what a step finds."""
        recorder, catalog = self._recorder, self._catalog
        with unseen():
            catalog.refresh_holders()
            free = self._gradients.may_look
            living = catalog.living()
            held = [(v, t) for v, t in living if name in v.holders or (not v.holders and t.requires_grad and free(v))]
            found = self._gradients.read(held, values=False).states
            rates = _learning_rates(optimizer)
        closure = closure_of(args, kwargs) is not None
        before = Before(held, self._gradients.used(name, held, found, closure=closure), rates)
        own = [place for place, (v, _) in enumerate(held) if name in v.holders]
        context = circumstances_with(closure=closure, lr=_told_rate(max(rates.values(), default=0.0)))
        call = recorder.enter(LIFECYCLE, call_levels, name, context)

        gradients = before.gradients

        def conclude(known: list[str], _: NextSeq) -> None:
            gradients[:] = known
            call.context = context_with(call.context, "grads", summary([known[place] for place in own]))

        recorder.transfers.when(self.name, gradients, conclude, call=call)
        with unseen():
            if self._demand.wants_call(call_levels):  # whatever state is wanted: the facts of the call rest on it
                before.whole = self._demand.everything or self._replicas.wanted
                before.data = parameter_changes.before(held, whole=before.whole)
            before.kept = self._places(call_levels, name, optimizer, before)
            before.state = self._states.before(name, optimizer, held, before.kept)
            data = [was.fingerprint for was in before.data]
            if data and self._demand.wants_state(call_levels, PARAMETER_DATA):
                rate = max(rates.values(), default=0.0)
                self._settling.update_begins(name, held, data, before.gradients, rate)
            if data and self._replicas.wanted:
                self._replicas.step_begins(held, data, before.gradients, call.seq)
        self._readings.step_begins(optimizer, name, call.seq)
        return call, before

    def _places(self, call_levels: tuple[str, ...], name: str, optimizer: Any, before: Before) -> Sequence[int]:
        """Of which of the variables it is told what the optimizer keeps for them."""
        if self._demand.wants_state(call_levels, STATE_DATA):
            return range(len(before.held))
        if self._demand.wants_state(call_levels, SOME_STATE):
            return witnesses(name, optimizer, before.held, before.gradients)
        return ()

    def _runs(self, step: OpenStep) -> bool:
        """Whether `step` still runs; the call of one that raised is closed."""
        if step.runs():
            return True
        if step in self._open:
            self._open.remove(step)
            if step.aside:
                self._recorder.aside.end()
            if step.call is not None:
                self._recorder.abandon(step.call)
        return False

    def _step_ends(self, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        name = self._catalog.add_optimizer(optimizer)
        if not self._open or self._open[-1].optimizer != name or self._open[-1].frame is not hooked():
            return
        call, _, before, _, _, aside = self._open.pop()
        if aside:
            self._recorder.aside.end()
        if call is not None and before is not None and self._recorder.watching:
            self._tell_end(call, name, before, optimizer)
        self._gradients.step_ends(name)
        if call is not None:
            self._recorder.leave(call)
        self._recorder.steps.update_ends(name)

    def _tell_end(self, call: OpenCall, name: str, before: Before, optimizer: Any) -> None:
        """Read what a step leaves."""
        with unseen():
            before.negligible = taken_for_none(optimizer, before.held)
            if before.data:
                self._tell_data(call, name, before)
            if before.kept:
                self._tell_state(call, name, before, optimizer)
        self._readings.step_ends(optimizer, name, call.seq)
        self._settling.update_ends()

    def _tell_data(self, call: OpenCall, name: str, before: Before) -> None:
        was, gradients, read, negligible = before.data, before.gradients, before.read, before.negligible
        found = parameter_changes.after(before.held, was, whole=before.whole)
        wanted = self._demand.wants_state(call.levels, PARAMETER_DATA)
        variables = [variable for variable, _ in before.held]  # (what is put off must not hold parameters)
        rates = [before.rates.get(id(tensor)) for _, tensor in before.held]
        facts_of = [variable.facts(tensor, name) for variable, tensor in before.held]

        def conclude(known: list[Any], next_seq: NextSeq) -> None:
            due = [graded == SOME and rates[place] != 0 for place, graded in enumerate(gradients)]
            own: set[str] = set()
            changes = []
            for place, became in enumerate(parameter_changes.became(variables, was, found, known, due)):
                gradient = ZERO if place in negligible else str(gradients[place])
                variable, rate = variables[place], rates[place]
                changed, fingerprint = became
                if not variable.holders and not self._concerned(variable, gradient):
                    continue
                lost = not changed and gradient == SOME and _lost_in_rounding(variable.tensor(), rate, read[place])
                if name in variable.holders:
                    own.add("changed" if changed else "lost" if lost else gradient)
                if not wanted:
                    continue
                changes.append(
                    Change(
                        seq=next_seq(),
                        call=call.seq,
                        variable=variable.name,
                        kind="parameter",
                        attribute="data",
                        before=SOME,
                        after=SOME,
                        changed=changed,
                        owner=variable.owner,
                        context=_step_facts(facts_of[place], gradient, rate, lost=lost),
                        fingerprint=fingerprint,
                    )
                )
            self._recorder.changed(changes)
            call.context = context_with(call.context, "lost", "lost" in own and not own & {"changed", SOME})

        told = parameter_changes.pending_in(found)
        self._recorder.transfers.when(self.name, told, conclude, call=call, events=len(variables))

    def _concerned(self, variable: Variable, gradient: str) -> bool:
        """Whether an update should have been of a variable that no optimizer holds: its gradient is of this step. (What
        an earlier model was left with is nobody's concern.)"""
        return variable in self._gradients.fresh if gradient == SOME else variable.owned

    def _tell_state(self, call: OpenCall, name: str, before: Before, optimizer: Any) -> None:
        after = self._states.after(name, optimizer, before.held, before.kept)
        differs = [unlike(before.state.get(entry), digest) for entry, digest in after.items()]
        gradients, negligible = before.gradients, before.negligible
        of_entries = []
        for place, entry in after:
            variable, tensor = before.held[place]
            told = variable.facts(tensor, name), before.rates.get(id(tensor))
            known_before = "none" if before.state.get((place, entry)) is None else SOME
            # One object in all steps, as other names are.
            of_entries.append((place, sys.intern(f"{variable.name}:{entry}"), known_before, *told))

        def conclude(known: list[Any], next_seq: NextSeq) -> None:
            changes = []
            for number, (place, entry_name, old, facts_of, rate) in enumerate(of_entries):
                changes.append(
                    Change(
                        seq=next_seq(),
                        call=call.seq,
                        variable=entry_name,
                        kind="optimizer_state",
                        attribute="data",
                        before=old,
                        after=SOME,
                        changed=known[number + len(of_entries)],
                        owner=name,
                        context=_step_facts(facts_of, ZERO if place in negligible else str(gradients[place]), rate),
                        fingerprint=known[number],
                    )
                )
            self._recorder.changed(changes)

        self._recorder.transfers.when(self.name, [*after.values(), *differs], conclude, events=len(after))

    # -- zero_grad -------------------------------------------------------------------------------------------------

    def _clear_begins(self, optimizer: Any, set_to_none: bool = True) -> tuple[OpenCall, str, Snapshot] | None:
        self._recorder.at_rest()
        catalog = self._catalog
        call_levels = levels(type(optimizer), "zero_grad", Optimizer)
        if not self._demand.wants_call(call_levels) and not self._demand.wants_state(call_levels, PARAMETER_GRAD):
            return None
        name = catalog.add_optimizer(optimizer)
        with unseen():
            catalog.refresh_holders()
            held = [(v, t) for v, t in catalog.living() if name in v.holders]
            snapshot = self._gradients.read(held, values=False)
        call = self._recorder.enter(LIFECYCLE, call_levels, name, circumstances_with(set_to_none=bool(set_to_none)))
        self._gradients.tell_states(call, snapshot)
        return call, name, snapshot

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
        found.update(dict.fromkeys(map(id, group["params"]), rate))
    return found


def _told_rate(rate: float | None) -> str:
    if rate is None:
        return "none"
    return "positive" if rate >= NEGLIGIBLE else "negligible" if rate > 0 else "zero"


def _lost_in_rounding(tensor: torch.Tensor | None, rate: float | None, state: str | Pending) -> bool:
    """Whether no element of the parameter could change by learning rate times gradient. Call under `unseen`.

    Asked only where a parameter did not change: it is the one honest reason not to, and not worth its cost elsewhere.
    Where that is found out late, the gradient may be gone; then the largest of its elements, by which its `state` was
    known, is held against the largest of the parameter.
    """
    if tensor is None or rate is None or not tensor.is_floating_point():
        return False
    dense = local(tensor)
    if dense is None:
        return False
    if tensor.grad is None and type(state) is Pending:
        largest = float(state.numbers[0]) * rate
        return bool(largest <= torch.finfo(dense.dtype).eps * float(torch.linalg.vector_norm(dense, math.inf)))
    gradient = None if tensor.grad is None else local(tensor.grad)
    if gradient is None or gradient.shape != dense.shape:
        return False
    smallest = torch.finfo(dense.dtype).eps * dense.abs()
    return bool(((gradient.to(dense.dtype) * rate).abs() <= smallest).all())


_told: Kept[tuple[Facts, str, str, bool], Facts] = Kept()


def _step_facts(base: Facts, gradient: str, rate: float | None, *, lost: bool = False) -> Facts:
    """The facts of a variable and what an update found of it."""
    lr = _told_rate(rate)
    key = (base, gradient, lr, lost)
    found = _told.get(key)
    if found is None:
        found = _told.put(key, merged(base, grad=gradient, lr=lr, lost=lost))
    return found
