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

from traincheck.sources.gradients.unreduced_gradients import KeptGradients
from traincheck.sources.modules.variables import SLACK, Catalog, Variable
from traincheck.sources.recording.context_facts import autocast_dtype, context_with
from traincheck.sources.recording.recorder import OpenCall, Recorder
from traincheck.sources.tensors.deferred_values import Pending, unlike
from traincheck.sources.tensors.device_transfers import NextSeq
from traincheck.sources.tensors.reading import NONE, PLAIN, SOME, ZERO, computed, computed_states
from traincheck.sources.tensors.spot_checks import Look, changed, look
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
    looks: dict[int, Look]
    kept: bool = False
    scaled: bool = False


class Gradients:
    """Reads the states of gradients and tells how they changed. Call its methods under `unseen`."""

    def __init__(self, catalog: Catalog, recorder: Recorder) -> None:
        self._catalog = catalog
        self._recorder = recorder
        self._kept = KeptGradients(catalog)
        self._last: dict[Variable, str] = {}
        self._thread = threading.get_ident()  # the first one
        self._several = False
        self._threads: dict[int, tuple[weakref.ref[nn.Module], int]] = {}
        self._steps: dict[str, int] = {}  # the thread in which an optimizer stepped last
        self._known = 0  # entries of it when those of what is gone were let go last
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

    def done(self) -> tuple[int, int, int]:
        """How many backwards, calls that clip and updates there were."""
        return self._backwards, self._clips, self._updates

    def module_called(self, module: nn.Module) -> None:
        """Note that a module that has parameters is called with gradients on."""
        if len(self._called) > _MOST_MODULES:
            self._called.clear()
        me = threading.get_ident()
        if self._several or me != self._thread:
            self._meet_thread(module, me)
        self._called[id(module)] = self._updates
        self.half = self.half or autocast_dtype() == "float16"

    def _meet_thread(self, module: nn.Module, me: int) -> None:
        """Note who calls a module, see Note [Threads that train]."""
        self._several = True
        if "_is_replica" in module.__dict__:
            return  # made anew for every call by DataParallel, in threads of its own
        if len(self._threads) > _MOST_MODULES:
            self._threads.clear()
        known = self._threads.get(id(module))
        if known is None or known[0]() is not module:
            found = (self._catalog.find(one) for one in module._parameters.values() if one is not None)
            trained = any(variable is not None and variable.graded for variable in found)  # before there were several
            known = self._threads[id(module)] = weakref.ref(module), self._thread if trained else me
        if known[1] != me:
            self._recorder.fault(SOURCE, RuntimeError("several threads train one module, which cannot be followed"))
            self._recorder.active = False

    def may_look(self, variable: Variable) -> bool:
        """Whether this thread may look at the gradient of a variable."""
        if not self._several:
            return True
        module = None if variable.module is None else variable.module()
        known = self._threads.get(id(module))
        if module is None or known is None or known[0]() is not module:
            who = next((self._steps[name] for name in tuple(variable.holders) if name in self._steps), self._thread)
        else:
            who = known[1]
        return who == threading.get_ident()

    def step_ends(self, optimizer: str) -> None:
        """Note that an optimizer has used its gradients."""
        self._updates += 1
        self._steps[optimizer] = threading.get_ident()
        self._seen[optimizer] = (self._backwards, self._updates)
        self._recorder.transfers.when(SOURCE, (), lambda *_: self.fresh.clear())

    def used(
        self, optimizer: str, held: Sequence[Held], found: Sequence[str | Pending], *, closure: bool
    ) -> list[str | Pending]:
        """The states `found` of gradients as a step of `optimizer` sees them, see Note [Unused parameters]. (What is
        pending is there.)"""
        backwards, updates = self._seen.get(optimizer, (0, 0))
        others_since = updates if optimizer in self._seen else -1  # at its first step it waits for no other one
        if closure or NONE not in found:
            return list(found)
        own = [state for (variable, _), state in zip(held, found, strict=True) if optimizer in variable.holders]
        idle = self._backwards == backwards and bool(own) and all(state == NONE for state in own)

        def is_unused(variable: Variable) -> bool:
            return self._is_unused(variable, updates) or self._is_of_another(variable, optimizer, others_since)

        return [
            UNUSED if state == NONE and (idle or is_unused(variable)) else state
            for (variable, _), state in zip(held, found, strict=True)
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
        if len(self._last) > 2 * self._known + SLACK:
            self._let_go()
        found = [(v, t) for v, t in self._catalog.living() if t.requires_grad or v.holders]
        return [(v, t) for v, t in found if self.may_look(v)] if self._several else found

    def _let_go(self) -> None:
        """Forget variables and optimizers that are gone: a program may make new ones all the time."""
        self._last = {variable: state for variable, state in list(self._last.items()) if variable.tensor() is not None}
        living = {name for name, _ in self._catalog.optimizers()}
        self._seen = {name: seen for name, seen in list(self._seen.items()) if name in living}
        self._known = len(self._last)

    def read(self, held: Sequence[Held], *, values: bool, kept: bool = False, scaled: bool = False) -> Snapshot:
        """States of the gradients now; with `values` also what those are that are not zero: their fingerprints, or,
        where the call can only scale them (`scaled`), as much as shows that.

        What changed since the last reading is told as a change between calls. `kept` says that a gradient is one also
        where ranks have not reduced it yet: a backward makes it, no update can use it.
        """
        gradients = self._all_of(held, kept)
        now = computed_states(gradients)
        looks: dict[int, Look] = {}
        if values:
            some = {place: g for place, g in enumerate(gradients) if g is not None and now[place] != ZERO}
            looks = dict(zip(some, (look if scaled else computed)([*some.values()]), strict=True))
        variables = [variable for variable, _ in held]

        def conclude(known: list[str], next_seq: NextSeq) -> None:
            now[:] = known
            told = []
            for variable, state in zip(variables, known, strict=True):
                before = self._last.get(variable, state)
                if before != state:
                    tensor = variable.tensor()
                    if tensor is not None:
                        context = variable.facts(tensor, variable.owner)
                        told.append(_change(next_seq(), NO_CALL, variable, before, state, True, context))
                    self._last[variable] = state
            self._recorder.changed(told)

        self._recorder.transfers.when(SOURCE, now, conclude, events=len(held))
        return Snapshot(held, now, looks, kept, scaled)

    def tell_states(self, call: OpenCall, snapshot: Snapshot) -> None:
        """Add to the circumstances of a call what the gradients were before it."""
        states = snapshot.states

        def conclude(*_: object) -> None:
            call.context = context_with(call.context, "grads", summary(states))

        self._recorder.transfers.when(SOURCE, (), conclude, call=call)

    def _all_of(self, held: Sequence[Held], kept: bool) -> list[torch.Tensor | None]:
        return [tensor.grad if not kept or type(tensor) in PLAIN else self._kept.of(tensor) for _, tensor in held]

    def compare(
        self,
        before: Snapshot,
        call: int,
        viewer: str = "",
        scale: float | Pending = 0.0,
        *,
        backward: bool = False,
    ) -> None:
        """Tell how the gradients of `before` changed in `call`, which is a `backward` or only changes what is there;
        `viewer` is the optimizer that was called, if any.

        `scale` is the factor that the call divides gradients by, where it does so: divided by one they cannot change,
        so those that did not change are left out.
        """
        held, states = before.held, before.states
        gradients = self._all_of(held, before.kept)
        now = computed_states(gradients)
        alike = {
            place: gradient
            for place, gradient in enumerate(gradients)
            if gradient is not None and before.looks.get(place) is not None and _may_be_alike(before, place, now[place])
        }
        looks = [before.looks[place] for place in alike]
        if before.scaled:
            differ = changed(looks, [*alike.values()])
        else:
            differ = list(map(unlike, looks, computed([*alike.values()])))
        # What is put off must hold neither gradients, which autograd would copy, nor parameters.
        places, variables = list(alike), [variable for variable, _ in held]
        contexts = [variable.facts(tensor, viewer or variable.owner) for variable, tensor in held]

        def conclude(known: list[Any], next_seq: NextSeq) -> None:
            by_one = known.pop() == 1
            differs = dict(zip(places, known[len(variables) :], strict=True))
            told = []
            for place, variable in enumerate(variables):
                old, new = str(states[place]), known[place]
                so = old != new or (new == SOME and differs.get(place, False))
                if so or not by_one:
                    told.append(_change(next_seq(), call, variable, old, new, so, contexts[place]))
                self._last[variable] = new
                if backward and so and new == SOME:
                    self.fresh.add(variable)
                    variable.graded = True
            self._recorder.changed(told)

        self._recorder.transfers.when(SOURCE, [*now, *differ, scale], conclude, events=len(held))


def _change(seq: int, call: int, variable: Variable, old: str, new: str, so: bool, context: Facts) -> Change:
    """What a gradient was before and after a call; `so` says whether it is another one."""
    return Change(seq, call, variable.name, "parameter", "grad", old, new, so, variable.owner, context)


def _may_be_alike(before: Snapshot, place: int, now: str | Pending) -> bool:
    """Whether a gradient that was read before a call may have been left as it was."""
    if type(now) is Pending:
        return True
    return now == SOME and before.states[place] == SOME


def summary(found: Sequence[str | Pending]) -> str:
    """none, zero, some or unused when all gradients agree, mixed when some are there and others are not. (None may be
    pending.)"""
    kinds = set(found)
    if not kinds:
        return NONE
    if kinds == {NONE, UNUSED}:
        return NONE
    return str(kinds.pop()) if len(kinds) == 1 else "mixed"
