"""Gradients: what the program's gradients are (none, zero, some), and how they came to be so.

Note [Gradients between calls]
A gradient may also change where no observed call is: `p.grad = None` in a loop of the user's own, a hook, a foreign
kernel. So the states are read anew at the start of every call that is observed, compared with those at the end of the
one before, and a difference is told as a change that belongs to no call.

Note [Unused parameters]
A parameter has no gradient where nothing was computed with it: no batch had a label, no token chose this expert, this
head is not of the task at hand. It is `unused` then, which is no reason to expect an update. But one that should be
trained and is not what the model computes with (a copy, one that was replaced) has no gradient either. So it counts as
unused only if no backward ran at all since the optimizer's last step, or if the module that owns it was not called
since then while the model around it was (or had given this parameter a gradient before).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from traincheck.sources.circumstances import autocast_dtype
from traincheck.sources.kept_gradients import KeptGradients
from traincheck.sources.recorder import Recorder
from traincheck.sources.tensors import NONE, SOME, fingerprints, states
from traincheck.sources.variables import Catalog, Variable
from traincheck.vocab.events import NO_CALL, Change

Held = tuple[Variable, torch.Tensor]

UNUSED = "unused"

_MOST_MODULES = 100_000
"""Calls kept in mind: more modules than that are made anew in each step."""


@dataclass(slots=True)
class Snapshot:
    """The gradients of some variables before a call; `kept` says that those which are kept back are among them."""

    held: Sequence[Held]
    states: list[str]
    fingerprints: list[int | None]
    kept: bool = False


class Gradients:
    """Reads the states of gradients and tells how they changed. Call its methods under `unseen`."""

    def __init__(self, catalog: Catalog, recorder: Recorder) -> None:
        self._catalog = catalog
        self._recorder = recorder
        self._kept = KeptGradients(catalog)
        self._last: dict[Variable, str] = {}
        self._backwards = 0
        self._clips = 0
        self._updates = 0
        self._called: dict[int, int] = {}  # of a module with parameters: the updates before its last call
        self._seen: dict[str, tuple[int, int]] = {}  # of an optimizer: backwards and updates up to its last step
        self.half = False
        """Whether a module was called under float16 autocast since a backward ran last."""
        self.fresh: set[Variable] = set()
        """Variables whose gradients a backward has made since an optimizer stepped last; others are of earlier work."""

    def backward_begins(self) -> None:
        """Note that a backward runs."""
        self._backwards += 1

    def clip_begins(self) -> None:
        """Note that a function of torch clips gradients."""
        self._clips += 1

    def done(self) -> tuple[int, int, int]:
        """How many backwards, calls that clip and updates there were."""
        return self._backwards, self._clips, self._updates

    def module_called(self, module: object) -> None:
        """Note that a module that has parameters is called with gradients on."""
        if len(self._called) > _MOST_MODULES:
            self._called.clear()
        self._called[id(module)] = self._updates
        self.half = self.half or autocast_dtype() == "float16"

    def step_ends(self, optimizer: str) -> None:
        """Note that an optimizer has used its gradients."""
        self._updates += 1
        self._seen[optimizer] = (self._backwards, self._updates)
        self.fresh.clear()

    def used(self, optimizer: str, held: Sequence[Held], found: Sequence[str], *, closure: bool) -> list[str]:
        """The states `found` of gradients as a step of `optimizer` sees them, see Note [Unused parameters]."""
        backwards, updates = self._seen.get(optimizer, (0, 0))
        if closure or NONE not in found:
            return list(found)
        own = [state for (variable, _), state in zip(held, found, strict=True) if optimizer in variable.holders]
        idle = self._backwards == backwards and set(own) == {NONE}
        return [
            UNUSED if state == NONE and (idle or self._is_unused(variable, updates)) else state
            for (variable, _), state in zip(held, found, strict=True)
        ]

    def _is_unused(self, variable: Variable, since: int) -> bool:
        module = None if variable.module is None else variable.module()
        root = None if variable.root is None else variable.root()
        if module is None or root is None or self._called.get(id(module), -1) >= since:
            return False
        return variable.graded or self._called.get(id(root), -1) >= since

    def trainable(self) -> list[Held]:
        """All living variables that require a gradient or are held by an optimizer."""
        self._catalog.refresh_holders()
        return [(v, t) for v, t in self._catalog.living() if t.requires_grad or v.holders]

    def read(self, held: Sequence[Held], *, values: bool, kept: bool = False) -> Snapshot:
        """States of the gradients now; with `values` also fingerprints of those that are not zero.

        What changed since the last reading is told as a change between calls. `kept` says that a gradient is one also
        where ranks have not reduced it yet: a backward makes it, no update can use it.
        """
        gradients = self._all_of(held, kept)
        now = states(gradients)
        for (variable, tensor), state in zip(held, now, strict=True):
            before = self._last.get(variable, state)
            if before != state:
                self._tell(NO_CALL, variable, tensor, before, state, True, variable.owner)
                self._last[variable] = state
        taken: list[int | None] = [None] * len(held)
        if values:
            some = [i for i, state in enumerate(now) if state == SOME]
            for place, digest in zip(
                some, fingerprints([g for i in some if (g := gradients[i]) is not None]), strict=True
            ):
                taken[place] = digest
        return Snapshot(held, now, taken, kept)

    def _all_of(self, held: Sequence[Held], kept: bool) -> list[torch.Tensor | None]:
        return [self._kept.of(tensor) if kept else tensor.grad for _, tensor in held]

    def compare(self, before: Snapshot, call: int, viewer: str = "") -> None:
        """Tell how the gradients of `before` changed in `call`; `viewer` is the optimizer that was called, if any."""
        gradients = self._all_of(before.held, before.kept)
        now = states(gradients)
        for place, (variable, tensor) in enumerate(before.held):
            old, new = before.states[place], now[place]
            changed = old != new
            gradient = gradients[place]
            if not changed and new == SOME and before.fingerprints[place] is not None and gradient is not None:
                changed = fingerprints([gradient])[0] != before.fingerprints[place]
            self._tell(call, variable, tensor, old, new, changed, viewer or variable.owner)
            self._last[variable] = new
            if changed and new == SOME:
                self.fresh.add(variable)
                variable.graded = True

    def _tell(
        self, call: int, variable: Variable, tensor: torch.Tensor, old: str, new: str, changed: bool, viewer: str
    ) -> None:
        self._recorder.change(
            Change(
                seq=self._recorder.next_seq(),
                call=call,
                variable=variable.name,
                kind="parameter",
                attribute="grad",
                before=old,
                after=new,
                changed=changed,
                owner=variable.owner,
                context=variable.facts(tensor, variable.held_by(viewer)),
            )
        )


def summary(found: Sequence[str]) -> str:
    """none, zero, some or unused when all gradients agree, mixed when some are there and others are not."""
    kinds = set(found)
    if not kinds:
        return NONE
    if kinds == {NONE, UNUSED}:
        return NONE
    return kinds.pop() if len(kinds) == 1 else "mixed"
