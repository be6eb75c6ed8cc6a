"""Gradients: what the program's gradients are (none, zero, some), and how they came to be so.

Note [Gradients between calls]
A gradient may also change where no observed call is: `p.grad = None` in a loop of the user's own, a hook, a foreign
kernel. So the states are read anew at the start of every call that is observed, compared with those at the end of the
one before, and a difference is told as a change that belongs to no call.

Note [Unused parameters]
A parameter has no gradient where nothing was computed with it: no batch had a label, no token chose this expert, this
head is not of the task at hand. It is `unused` then, which is no reason to expect an update. But one that should be
trained and is not what the model computes with (a copy, one that was replaced) has no gradient either. So it counts as
unused only if no backward ran at all since the optimizer's last step, if the module that owns it was not called
since then while the model around it was (or had given this parameter a gradient before), or if another optimizer that
holds it as well has stepped since then (or, at the first step of this one, may still step): that one has its gradients.

Note [Threads that train]
A backward replaces gradients without Python's lock. To look at one at that moment may crash the process. So a thread
looks at gradients only of modules that it has called itself, once several threads call modules; and where two threads
train one module, nothing is observed any more.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

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
from traincheck.vocab.events import NO_CALL, Change
from traincheck.vocab.facts import Facts

Held = tuple[Variable, torch.Tensor]

SOURCE = "gradients"

UNUSED = "unused"

_MOST_MODULES = 100_000
"""Calls kept in mind: more modules than that are made anew in each step."""


@dataclass(slots=True)
class Snapshot:
    """The gradients of some variables before a call: their states (to be asked for in what is put off behind it), and
    of some of them (by their places) what they were; `kept` says that those which are kept back are among them,
    `scaled` that the call can only scale them."""

    held: Sequence[Held]
    states: list[Any]
    looks: dict[int, Probe]
    unreduced: bool = False
    scaled: bool = False


class Gradients:
    """Reads the states of gradients and tells how they changed. Call its methods under `hidden_from_modes`."""

    def __init__(self, catalog: VariableCatalog, recorder: Recorder) -> None:
        self._catalog = catalog
        self._recorder = recorder
        self._unreduced = UnreducedGradients(catalog)
        self._last: dict[Variable, str] = {}
        self._thread = threading.get_ident()  # the first one
        self._several = False
        self._threads: dict[int, tuple[weakref.ref[nn.Module], int]] = {}
        self._steps: dict[str, int] = {}  # the thread in which an optimizer stepped last
        self._last_size = 0  # entries of it when those of what is gone were let go last
        self._backwards = 0
        self._clips = 0
        self._updates = 0
        self._called: dict[int, int] = {}  # of a module with parameters: the updates before its last call
        self._seen: dict[str, tuple[int, int]] = {}  # of an optimizer: backwards and updates up to its last step
        self.clipped: Callable[[], None] | None = None
        """Called after a function of torch has clipped gradients, see manual_updates.py."""
        self.half = False
        """Whether a module was called under float16 autocast since a backward ran last."""
        self.fresh: set[Variable] = set()
        """Variables whose gradients a backward has made since an optimizer stepped last; others are of earlier work."""
        recorder.after_gap(SOURCE, self._forget)

    def _forget(self) -> None:
        self._last.clear()
        self.fresh.clear()
        self.half = False

    def backward_begins(self) -> None:
        """Note that a backward runs."""
        self._backwards += 1

    def clip_begins(self) -> None:
        """Note that a function of torch clips gradients."""
        self._clips += 1

    def counts(self) -> tuple[int, int, int]:
        """How many backwards, calls that clip and updates there were."""
        return self._backwards, self._clips, self._updates

    def module_called(self, module: nn.Module) -> None:
        """Note that a module that has parameters is called with gradients on."""
        if len(self._called) > _MOST_MODULES:
            self._called.clear()
        me = threading.get_ident()
        if self._several or me != self._thread:
            self._note_thread(module, me)
        self._called[id(module)] = self._updates
        self.half = self.half or autocast_dtype() == "float16"

    def _note_thread(self, module: nn.Module, me: int) -> None:
        """Note who calls a module, see Note [Threads that train]."""
        self._several = True
        if "_is_replica" in module.__dict__:
            return  # made anew for every call by DataParallel, in threads of its own
        if len(self._threads) > _MOST_MODULES:
            self._threads.clear()
        entry = self._threads.get(id(module))
        if entry is None or entry[0]() is not module:
            variables = (
                self._catalog.find(parameter) for parameter in module._parameters.values() if parameter is not None
            )
            trained = any(
                variable is not None and variable.graded for variable in variables
            )  # before there were several
            entry = self._threads[id(module)] = weakref.ref(module), self._thread if trained else me
        if entry[1] != me:
            self._recorder.fault(SOURCE, RuntimeError("several threads train one module, which cannot be followed"))
            self._recorder.active = False

    def may_look(self, variable: Variable) -> bool:
        """Whether this thread may look at the gradient of a variable."""
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
        """Note that an optimizer has used its gradients."""
        self._updates += 1
        self._steps[optimizer] = threading.get_ident()
        self._seen[optimizer] = (self._backwards, self._updates)
        self._recorder.transfers.when_ready(SOURCE, (), lambda *_: self.fresh.clear())

    def used(
        self, optimizer: str, held: Sequence[Held], states: Sequence[str | DeferredValue], *, closure: bool
    ) -> list[str | DeferredValue]:
        """The states `found` of gradients as a step of `optimizer` sees them, see Note [Unused parameters]. (What is
        pending is there.)"""
        backwards, updates = self._seen.get(optimizer, (0, 0))
        others_since = updates if optimizer in self._seen else -1  # at its first step it waits for no other one
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
        """Whether another optimizer that also holds a variable has stepped after `since` updates: it uses the
        gradients."""
        return any(self._seen.get(name, (0, 0))[1] > since for name in variable.holders if name != optimizer)

    def _is_unused(self, variable: Variable, since: int) -> bool:
        module = None if variable.module is None else variable.module()
        root = None if variable.root is None else variable.root()
        if module is None or root is None or self._called.get(id(module), -1) >= since:
            return False
        return variable.graded or self._called.get(id(root), -1) >= since

    def last_state(self, variable: Variable) -> str:
        """The state of a gradient when it was read last; none where it was not read."""
        return self._last.get(variable, NONE)

    def trainable(self) -> list[Held]:
        """All living variables that require a gradient or are held by an optimizer."""
        self._catalog.refresh_holders()
        if len(self._last) > 2 * self._last_size + MAX_STALE:
            self._drop_dead()
        held = [(v, t) for v, t in self._catalog.living() if t.requires_grad or v.holders]
        return [(v, t) for v, t in held if self.may_look(v)] if self._several else held

    def _drop_dead(self) -> None:
        """Forget variables and optimizers that are gone: a program may make new ones all the time."""
        self._last = {variable: state for variable, state in list(self._last.items()) if variable.tensor() is not None}
        living = {name for name, _ in self._catalog.optimizers()}
        self._seen = {name: seen for name, seen in list(self._seen.items()) if name in living}
        self._last_size = len(self._last)

    def read(self, held: Sequence[Held], *, values: bool, unreduced: bool = False, scaled: bool = False) -> Snapshot:
        """States of the gradients now; with `values` also what those are that are not zero: their fingerprints, or,
        where the call can only scale them (`scaled`), as much as shows that.

        What changed since the last reading is told as a change between calls. `kept` says that a gradient is one also
        where ranks have not reduced it yet: a backward makes it, no update can use it.
        """
        gradients = self._all_of(held, unreduced)
        now = deferred_states(gradients)
        looks: dict[int, Probe] = {}
        if values:
            some = {index: g for index, g in enumerate(gradients) if g is not None and now[index] != ZERO}
            looks = dict(zip(some, (probe if scaled else deferred_fingerprints)([*some.values()]), strict=True))
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
                        changes.append(_change(next_seq(), NO_CALL, variable, before, state, True, context))
                    self._last[variable] = state
            self._recorder.record_changes(changes)

        self._recorder.transfers.when_ready(SOURCE, now, conclude, events=len(held))
        return Snapshot(held, now, looks, unreduced, scaled)

    def record_states(self, call: OpenCall, snapshot: Snapshot) -> None:
        """Add to the circumstances of a call what the gradients were before it."""
        states = snapshot.states

        def conclude(*_: object) -> None:
            call.context = with_fact(call.context, "grads", summary(states))

        self._recorder.transfers.when_ready(SOURCE, (), conclude, call=call)

    def _all_of(self, held: Sequence[Held], unreduced: bool) -> list[torch.Tensor | None]:
        return [
            tensor.grad if not unreduced or type(tensor) in PLAIN else self._unreduced.of(tensor) for _, tensor in held
        ]

    def compare(
        self,
        before: Snapshot,
        call: int,
        viewer: str = "",
        scale: float | DeferredValue = 0.0,
        *,
        backward: bool = False,
    ) -> None:
        """Tell how the gradients of `before` changed in `call`, which is a `backward` or only changes what is there;
        `viewer` is the optimizer that was called, if any.

        `scale` is the factor that the call divides gradients by, where it does so: divided by one they cannot change,
        so those that did not change are left out.
        """
        held, states = before.held, before.states
        gradients = self._all_of(held, before.unreduced)
        now = deferred_states(gradients)
        maybe_same = {
            index: gradient
            for index, gradient in enumerate(gradients)
            if gradient is not None
            and before.looks.get(index) is not None
            and _may_be_unchanged(before, index, now[index])
        }
        looks = [before.looks[index] for index in maybe_same]
        if before.scaled:
            differ = changed(looks, [*maybe_same.values()])
        else:
            differ = list(map(not_equal, looks, deferred_fingerprints([*maybe_same.values()])))
        # What is put off must hold neither gradients, which autograd would copy, nor parameters.
        places, variables = list(maybe_same), [variable for variable, _ in held]
        contexts = [variable.facts(tensor, viewer or variable.owner) for variable, tensor in held]

        def conclude(resolved: list[Any], next_seq: NextSeq) -> None:
            by_one = resolved.pop() == 1
            differs = dict(zip(places, resolved[len(variables) :], strict=True))
            changes = []
            for index, variable in enumerate(variables):
                old, new = str(states[index]), resolved[index]
                is_changed = old != new or (new == SOME and differs.get(index, False))
                if is_changed or not by_one:
                    changes.append(_change(next_seq(), call, variable, old, new, is_changed, contexts[index]))
                self._last[variable] = new
                if backward and is_changed and new == SOME:
                    self.fresh.add(variable)
                    variable.graded = True
            self._recorder.record_changes(changes)

        self._recorder.transfers.when_ready(SOURCE, [*now, *differ, scale], conclude, events=len(held))


def _change(seq: int, call: int, variable: Variable, old: str, new: str, is_changed: bool, context: Facts) -> Change:
    """What a gradient was before and after a call; `so` says whether it is another one."""
    return Change(seq, call, variable.name, "parameter", "grad", old, new, is_changed, variable.owner, context)


def _may_be_unchanged(before: Snapshot, index: int, now: str | DeferredValue) -> bool:
    """Whether a gradient that was read before a call may have been left as it was."""
    if type(now) is DeferredValue:
        return True
    return now == SOME and before.states[index] == SOME


def summary(states: Sequence[str | DeferredValue]) -> str:
    """none, zero, some or unused when all gradients agree, mixed when some are there and others are not. (None may be
    pending.)"""
    kinds = set(states)
    if not kinds:
        return NONE
    if kinds == {NONE, UNUSED}:
        return NONE
    return str(kinds.pop()) if len(kinds) == 1 else "mixed"
