"""Reads the state of each gradient (none, zero, some) and records how it changes.

Note [Gradients between calls]
A gradient may change outside every observed call: `p.grad = None` in a loop, a hook, a foreign kernel. TrainCheck
therefore reads the states again at the start of every observed call. A difference from the end of the previous call is
recorded as a change that belongs to no call.

Note [Unused parameters]
A parameter has no gradient where no computation used it: a batch without labels, an expert that no token chose, the
head of another task. Its gradient is `unused` then, and no update is expected. A parameter that should train but that
the model does not use (a copy, a replaced one) has no gradient either. A missing gradient therefore counts as unused
only in one of these cases:
* No backward ran since the optimizer's last step.
* The module that owns the parameter was not called since then, while the model around it was, or while the parameter
  had a gradient before.
* Another optimizer that also holds the parameter stepped since then, or may still step before this optimizer's first
  step.

Note [Gradients that a program takes]
A program may use a gradient without an optimizer: it moves the parameter along the gradient and back (sharpness-aware
minimization), or its backward hooks sum up parts of gradients (per-sample clipping). If such a gradient is cleared, the
change has the fact `taken`: the parameter was written to since the backward, or its module has backward hooks.

Note [Threads that train]
A backward replaces gradients without holding Python's lock, so reading one at that moment may crash the process. Once
several threads call modules, each thread reads only gradients of modules that it called itself. TrainCheck stops
observing when two threads train one module.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from traincheck.sources.gradients.unreduced_gradients import UnreducedGradients
from traincheck.sources.modules.variables import MAX_STALE, Variable, VariableCatalog
from traincheck.sources.recording.context_facts import autocast_dtype, with_fact
from traincheck.sources.recording.recorder import OpenCall, Recorder
from traincheck.sources.tensors.deferred_values import DeferredValue, not_equal
from traincheck.sources.tensors.device_transfers import NextSeq
from traincheck.sources.tensors.reading import NONE, PLAIN, SOME, ZERO, deferred_fingerprints, deferred_states
from traincheck.sources.tensors.spot_checks import Probe, changed, probe
from traincheck.sources.tensors.value_facts import device_norms
from traincheck.vocab.events import NO_CALL, Change
from traincheck.vocab.facts import Facts

if TYPE_CHECKING:
    from traincheck.sources.data.trained_samples import TrainedSamples

Held = tuple[Variable, torch.Tensor]

SOURCE = "gradients"

UNUSED, TAKEN = "unused", "taken"

_MAX_MODULES = 100_000
"""Modules remembered; a program with more of them builds new modules in each step."""


@dataclass(slots=True)
class Snapshot:
    """The gradients of some variables before a call.

    `states` may be pending until the next transfer. `probes` holds readings by index. `unreduced` says that the
    snapshot includes gradients which `fully_shard` has not reduced yet. `scaled` says that the call can only scale
    them.
    """

    held: Sequence[Held]
    states: list[Any]
    probes: dict[int, Probe]
    unreduced: bool = False
    scaled: bool = False


class Gradients:
    """Reads the states of gradients and records their changes. Call its methods under `hidden_from_modes`."""

    def __init__(self, catalog: VariableCatalog, recorder: Recorder) -> None:
        self._catalog = catalog
        self._recorder = recorder
        self._unreduced = UnreducedGradients(catalog)
        self._last: dict[Variable, str] = {}
        self._thread = threading.get_ident()  # the first thread seen
        self._several = False
        self._threads: dict[int, tuple[weakref.ref[nn.Module], int]] = {}
        self._steps: dict[str, int] = {}  # by optimizer: the thread of its last step
        self._last_size = 0  # size of `_last` after dead entries were last dropped
        self._backwards = 0
        self._clips = 0
        self._updates = 0
        self._called: dict[int, int] = {}  # by module with parameters: updates before its last call
        self._last_steps: dict[str, tuple[int, int]] = {}  # by optimizer: backwards and updates up to its last step
        self.on_clipped: Callable[[], None] | None = None
        """Called after a torch function clipped gradients, see manual_updates.py."""
        self.on_loss: Callable[[Any], None] | None = None
        """Called with the losses of each backward before it begins, see cut_gradients.py."""
        self.samples: TrainedSamples | None = None
        """The samples that models train on, as long as they are followed, see replaced_optimizers.py."""
        self.float16_called = False
        """Whether a module was called under float16 autocast since the last backward."""
        self.has_leaf_input = False
        """Whether a model was called on a leaf that requires a gradient since the last backward: then it is about the
        input. (Checkpointing calls modules on such leaves inside a backward.)"""
        self.differentiates = False
        """Whether the program has computed a derivative that a loss can depend on, see cut_gradients.py."""
        self.first_loss: float | DeferredValue | None = None
        """The loss of the first backward in a job of several ranks, see early_replicas.py."""
        self.are_all = True
        self.fresh: set[Variable] = set()
        """Variables whose gradient a backward made since the last optimizer step; other gradients are older."""
        recorder.after_gap(SOURCE, self._forget)

    def _forget(self) -> None:
        self._last.clear()
        self.fresh.clear()
        self.float16_called = self.has_leaf_input = False

    def backward_begins(self) -> None:
        """Count a backward."""
        self._backwards += 1

    def name_of(self, tensors: Iterable[torch.Tensor]) -> str:
        """Return the name of the first of these tensors that is a known variable, empty if none is."""
        variables = filter(None, map(self._catalog.find, tensors))
        return next((variable.name for variable in variables), "")

    def modules(self) -> list[nn.Module]:
        """Return the modules of the program that are alive."""
        return self._catalog.live_modules.living()

    def name_of_module(self, module: nn.Module) -> str:
        """Return the name of a module."""
        return self._catalog.module_name(module)

    def clip_begins(self) -> None:
        """Count a call of a torch function that clips gradients."""
        self._clips += 1

    def counts(self) -> tuple[int, int, int]:
        """Return the number of backwards, clipping calls and updates so far."""
        return self._backwards, self._clips, self._updates

    def module_called(self, module: nn.Module) -> None:
        """Note a call, with gradients on, of a module that has parameters."""
        if len(self._called) > _MAX_MODULES:
            self._called.clear()
        thread = threading.get_ident()
        if self._several or thread != self._thread:
            self._note_thread(module, thread)
        self._called[id(module)] = self._updates
        self.float16_called = self.float16_called or autocast_dtype() == "float16"

    def _note_thread(self, module: nn.Module, thread: int) -> None:
        """Note the thread that calls a module, see Note [Threads that train]."""
        if torch._C._current_graph_task_id() >= 0:
            return  # checkpointing computes it again, in the thread that an accelerator has for its backward
        self._several = True
        if "_is_replica" in module.__dict__:
            return  # DataParallel builds replicas for every call, in its own threads
        if len(self._threads) > _MAX_MODULES:
            self._threads.clear()
        entry = self._threads.get(id(module))
        if entry is None or entry[0]() is not module:
            variables = (
                self._catalog.find(parameter) for parameter in module._parameters.values() if parameter is not None
            )
            # A gradient that exists already comes from the first thread, before others called modules.
            trained = any(variable is not None and variable.graded for variable in variables)
            entry = self._threads[id(module)] = weakref.ref(module), self._thread if trained else thread
        if entry[1] != thread:
            self._recorder.fault(SOURCE, RuntimeError("several threads train one module, which cannot be followed"))
            self._recorder.deactivate()

    def may_read(self, variable: Variable) -> bool:
        """Return whether this thread may read the gradient of a variable."""
        if not self._several:
            return True
        module = None if variable.module is None else variable.module()
        entry = self._threads.get(id(module))
        if module is None or entry is None or entry[0]() is not module:
            thread = next((self._steps[name] for name in tuple(variable.holders) if name in self._steps), self._thread)
        else:
            thread = entry[1]
        return thread == threading.get_ident()

    def step_ends(self, optimizer: str) -> None:
        """Note that an optimizer used its gradients."""
        self._updates += 1
        self._steps[optimizer] = threading.get_ident()
        self._last_steps[optimizer] = (self._backwards, self._updates)
        self._recorder.transfers.when_ready(SOURCE, (), lambda *_: self.fresh.clear())

    def used(
        self, optimizer: str, held: Sequence[Held], states: Sequence[str | DeferredValue], *, closure: bool
    ) -> list[str | DeferredValue]:
        """Return the `states` of gradients as a step of `optimizer` sees them, see Note [Unused parameters].

        A pending state counts as a gradient that exists.
        """
        backwards, updates = self._last_steps.get(optimizer, (0, 0))
        # Before its first step, a step of another optimizer counts whenever it was.
        others_since = updates if optimizer in self._last_steps else -1
        if closure or NONE not in states:
            return list(states)
        own = [state for (variable, _), state in zip(held, states, strict=True) if optimizer in variable.holders]
        idle = self._backwards == backwards and bool(own) and all(state == NONE for state in own)

        def is_unused(variable: Variable) -> bool:
            return self._is_unused(variable, updates) or self._is_of_another(variable, optimizer, others_since)

        return [
            UNUSED if state == NONE and (idle or is_unused(variable)) else state
            for (variable, _), state in zip(held, states, strict=True)
        ]

    def _is_of_another(self, variable: Variable, optimizer: str, since: int) -> bool:
        """Return whether another optimizer that holds the variable stepped after `since` updates, and so used its
        gradient."""
        return any(self._last_steps.get(name, (0, 0))[1] > since for name in variable.holders if name != optimizer)

    def _is_unused(self, variable: Variable, since: int) -> bool:
        module = None if variable.module is None else variable.module()
        root = None if variable.root is None else variable.root()
        if module is None or root is None or self._called.get(id(module), -1) >= since:
            return False
        return variable.graded or self._called.get(id(root), -1) >= since

    def last_state(self, variable: Variable) -> str:
        """Return the state of a gradient at the last reading; none without one."""
        return self._last.get(variable, NONE)

    def trainable(self) -> list[Held]:
        """Return all living variables that require a gradient or that an optimizer holds.

        `are_all` says afterwards whether these are all: others may have no memory now.
        """
        self._catalog.refresh_holders()
        if len(self._last) > 2 * self._last_size + MAX_STALE:
            self._drop_dead()
        held = [(v, t) for v, t in self._catalog.living() if t.requires_grad or v.holders]
        self.are_all = not self._catalog.has_emptied
        return [(v, t) for v, t in held if self.may_read(v)] if self._several else held

    def was_called(self, variable: Variable) -> bool:
        """Return whether the module that owns a variable was called with gradients on."""
        module = None if variable.module is None else variable.module()
        return id(module) in self._called

    def has_stepped(self, optimizer: str) -> bool:
        """Return whether an optimizer has ever stepped."""
        return optimizer in self._steps

    def idle_optimizers(self) -> set[str]:
        """Return the living optimizers that never stepped, and that alone hold parameters of modules in training mode
        which got gradients."""
        idle = {name for name, _ in self._catalog.optimizers() if not self.has_stepped(name)}
        found: set[str] = set()
        for variable, tensor in self._catalog.living() if idle else ():
            module = None if variable.module is None else variable.module()
            is_trained = variable.graded and tensor.requires_grad and module is not None and module.training
            if is_trained and len(variable.holders) == 1:
                found |= idle & variable.holders
        return found

    def _drop_dead(self) -> None:
        """Drop entries of variables and optimizers that no longer exist: a program may build new ones all the time."""
        self._last = {variable: state for variable, state in list(self._last.items()) if variable.tensor() is not None}
        living = {name for name, _ in self._catalog.optimizers()}
        self._last_steps = {name: seen for name, seen in list(self._last_steps.items()) if name in living}
        self._last_size = len(self._last)

    def read(self, held: Sequence[Held], *, values: bool, unreduced: bool = False, scaled: bool = False) -> Snapshot:
        """Return the states of the gradients now; with `values`, also readings of those that are not zero.

        Readings are fingerprints, or samples where the call can only scale gradients (`scaled`). Changes since the last
        reading are recorded as changes between calls. With `unreduced`, a gradient counts even if the ranks have not
        reduced it yet: a backward makes it, but no update can use it.
        """
        gradients = self._all_of(held, unreduced)
        now = deferred_states(gradients)
        probes: dict[int, Probe] = {}
        if values:
            some = {index: g for index, g in enumerate(gradients) if g is not None and now[index] != ZERO}
            probes = dict(zip(some, (probe if scaled else deferred_fingerprints)([*some.values()]), strict=True))
        variables = [variable for variable, _ in held]

        def conclude(resolved: list[str], next_seq: NextSeq) -> None:
            now[:] = resolved
            changes = []
            for variable, state in zip(variables, resolved, strict=True):
                before = self._last.get(variable, state)
                if before != state:
                    tensor = variable.tensor()
                    if tensor is not None:
                        context = variable.facts(tensor, variable.owner)
                        if before == SOME and variable in self.fresh and tensor._version != variable.version:
                            context = with_fact(context, TAKEN, True)
                        changes.append(
                            _change(next_seq(), NO_CALL, variable, before, state, True, context, variable.owner)
                        )
                    self._last[variable] = state
            self._recorder.record_changes(changes)

        self._recorder.transfers.when_ready(SOURCE, now, conclude, events=len(held))
        return Snapshot(held, now, probes, unreduced, scaled)

    def record_states(self, call: OpenCall, snapshot: Snapshot) -> None:
        """Add the state of the gradients to the context of a call."""
        states = snapshot.states

        def conclude(*_: object) -> None:
            call.context = with_fact(call.context, "grads", summary(states))

        self._recorder.transfers.when_ready(SOURCE, (), conclude, call=call)

    def _all_of(self, held: Sequence[Held], unreduced: bool) -> list[torch.Tensor | None]:
        if not unreduced:
            return [tensor.grad for _, tensor in held]
        unreduced_of = self._unreduced.of
        return [
            tensor.grad if type(tensor) in PLAIN and not tensor.__dict__ else unreduced_of(tensor) for _, tensor in held
        ]

    def compare(
        self,
        before: Snapshot,
        call: int,
        viewer: str = "",
        scale: float | DeferredValue = 0.0,
        *,
        backward: bool = False,
    ) -> dict[int, DeferredValue]:
        """Record how `call` changed the gradients in `before`. Returns the norms of gradients on accelerators that it
        measured after the call, by the identities of these gradients.

        `backward` says that the call creates gradients; other calls only modify existing ones. `viewer` names the
        optimizer that was called, if any. `scale` is the divisor that the call applies, if any. Dividing by one changes
        nothing, so unchanged gradients are left out then.
        """
        held, states = before.held, before.states
        gradients = self._all_of(held, before.unreduced)
        norms = _norms_after_scaling(before, gradients) if before.scaled else {}
        now = _states_after(before, gradients, norms) if norms else deferred_states(gradients)
        maybe_same = {
            index: gradient
            for index, gradient in enumerate(gradients)
            if gradient is not None
            and before.probes.get(index) is not None
            and _may_be_unchanged(before, index, now[index])
        }
        probes = [before.probes[index] for index in maybe_same]
        if before.scaled:
            differ = changed(
                probes, [*maybe_same.values()], [norms.get(index) for index in maybe_same] if norms else None
            )
        else:
            differ = list(map(not_equal, probes, deferred_fingerprints([*maybe_same.values()])))
        taken: set[int] = set()
        for index, (variable, tensor) in enumerate(held if backward or self.fresh else ()):
            if backward:
                module = None if variable.module is None else variable.module()
                is_hooked = module is None or module._backward_hooks
                variable.version = -1 if is_hooked or tensor.is_inference() else tensor._version
            elif variable in self.fresh and tensor._version != variable.version:
                taken.add(index)
        # The deferred part must hold neither gradients (autograd would copy them) nor parameters.
        places, variables = list(maybe_same), [variable for variable, _ in held]
        # The optimizer may be gone when the conclusion is drawn.
        described = [(variable.facts(tensor, viewer or variable.owner), variable.owner) for variable, tensor in held]

        def conclude(resolved: list[Any], next_seq: NextSeq) -> None:
            scale_is_one = resolved.pop() == 1
            differs = dict(zip(places, resolved[len(variables) :], strict=True))
            changes = []
            for index, variable in enumerate(variables):
                old, new = str(states[index]), resolved[index]
                is_changed = old != new or (new == SOME and differs.get(index, False))
                if is_changed or not scale_is_one:
                    context, owner = described[index]
                    if index in taken and old == SOME and new != SOME:
                        context = with_fact(context, TAKEN, True)
                    changes.append(_change(next_seq(), call, variable, old, new, is_changed, context, owner))
                self._last[variable] = new
                if backward and is_changed and new == SOME:
                    self.fresh.add(variable)
                    variable.graded = True
            self._recorder.record_changes(changes)

        self._recorder.transfers.when_ready(SOURCE, [*now, *differ, scale], conclude, events=len(held))
        return {id(gradients[index]): norm for index, norm in norms.items()} if norms else {}


def _norms_after_scaling(before: Snapshot, gradients: Sequence[torch.Tensor | None]) -> dict[int, DeferredValue]:
    """The norms, by index, of gradients on accelerators whose norm was also measured before a call that scales."""
    pending = {
        index: gradient
        for index, gradient in enumerate(gradients)
        if gradient is not None and type(before.probes.get(index)) is DeferredValue
    }
    norms = zip(pending, device_norms([*pending.values()]), strict=True) if pending else ()
    return {index: norm for index, norm in norms if norm is not None}


def _states_after(
    before: Snapshot, gradients: Sequence[torch.Tensor | None], norms: Mapping[int, DeferredValue]
) -> list[str | DeferredValue]:
    """The states of gradients after a call. A norm shows the state, so such a gradient is not read again."""
    states = deferred_states([None if index in norms else gradient for index, gradient in enumerate(gradients)])
    for index, norm in norms.items():
        state, probed = before.states[index], before.probes[index]
        if type(state) is DeferredValue and type(probed) is DeferredValue:
            numbers = (*state.numbers, *probed.numbers, *norm.numbers)
            states[index] = DeferredValue(numbers, _state_after_scaling)
        else:
            states[index] = deferred_states([gradients[index]])[0]
    return states


def _state_after_scaling(largest_before: float, norm_before: float, norm: float) -> str:
    """The state of a gradient by its norm. The squares of tiny elements underflow: then the norm was zero before."""
    return ZERO if norm == 0 and (largest_before == 0 or norm_before != 0) else SOME


def _change(
    seq: int, call: int, variable: Variable, old: str, new: str, is_changed: bool, context: Facts, owner: str
) -> Change:
    """Build the change of a gradient in a call."""
    return Change(seq, call, variable.name, "parameter", "grad", old, new, is_changed, owner, context)


def _may_be_unchanged(before: Snapshot, index: int, now: str | DeferredValue) -> bool:
    """Return whether a call may have left a gradient as it was before."""
    if type(now) is DeferredValue:
        return True
    return now == SOME and before.states[index] == SOME


def summary(states: Sequence[str | DeferredValue]) -> str:
    """Summarise the states of gradients: none, zero, some or unused where all agree, else mixed. No state may be
    pending."""
    kinds = set(states)
    if not kinds:
        return NONE
    if kinds == {NONE, UNUSED}:
        return NONE
    return str(kinds.pop()) if len(kinds) == 1 else "mixed"
