"""Settling: what a training step made of the parameters that no optimizer holds, told when the step is over.

Note [Master copies]
A model in low precision is often trained by copies in full precision, which the optimizer holds and the program writes
back. So what becomes of such a model is seen only after the update. It is read when the window of the step is cut, and
told as changes between calls, at positions that were set aside when the update ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from traincheck.sources.gradients import Gradients, Held
from traincheck.sources.recorder import Recorder
from traincheck.sources.tensors import SOME, fingerprints, local, unseen
from traincheck.sources.variables import NOBODY, Variable
from traincheck.vocab.events import NO_CALL, TRAIN, Change
from traincheck.vocab.facts import merged

MARGIN = 16
"""How many times the rounding of its smallest element an update must be to show for certain in a parameter that is
rounded from a copy: an update is about the learning rate times the gradient, or at most one with Adam."""


class _Awaited(NamedTuple):
    """A variable that the step should change: what it was, and about how much an update changes it."""

    before: int
    size: float


class Settling:
    """Keeps what is awaited of the step under way."""

    def __init__(self, gradients: Gradients, recorder: Recorder) -> None:
        self._gradients = gradients
        self._recorder = recorder
        self._awaited: dict[Variable, _Awaited] = {}
        self._seqs: list[int] = []
        self._last: dict[Variable, int] = {}
        recorder.after_gap("settling", self._forget)

    def _forget(self) -> None:
        self._awaited, self._seqs, self._last = {}, [], {}

    def update_begins(
        self, optimizer: str, held: Sequence[Held], data: Sequence[int | None], states: Sequence[str], rate: float
    ) -> None:
        """Note what this update should change that no optimizer holds; `data` are fingerprints, `states` those of
        gradients."""
        only_copies = not any(variable.owned and optimizer in variable.holders for variable, _ in held)
        masters: dict[torch.Size, list[tuple[torch.Tensor, str]]] = {}
        for (variable, tensor), state in zip(held, states, strict=True):
            if not variable.owned and optimizer in variable.holders:
                masters.setdefault(tensor.shape, []).append((tensor, state))
        for (variable, tensor), before, state in zip(held, data, states, strict=True):
            if variable.holders or not variable.owned or before is None or not tensor.requires_grad:
                continue
            copies = masters.get(tensor.shape, ())
            fresh = state == SOME and variable in self._gradients.fresh
            if (fresh and (copies or only_copies)) or (state != SOME and any(graded == SOME for _, graded in copies)):
                size = rate * min(1.0, max(map(_largest, (tensor, *(copy for copy, _ in copies)))))
                known = self._awaited.get(variable)
                first = self._last.get(variable, before) if known is None else known.before
                self._awaited[variable] = _Awaited(first, max(size, known.size if known else 0.0))

    def update_ends(self) -> None:
        """Set aside the positions at which the changes will be told."""
        while len(self._seqs) < len(self._awaited):
            self._seqs.append(self._recorder.next_seq())

    def tell(self, stage: str) -> None:
        """Tell what became of what was awaited: the window is about to be cut."""
        if not self._awaited or stage != TRAIN:
            return
        awaited, self._awaited = self._awaited, {}
        seqs, self._seqs = self._seqs, []
        with unseen():
            alive = [(v, t, one) for v, one in awaited.items() if (t := v.tensor()) is not None]
            after = fingerprints([tensor for _, tensor, _ in alive])
            self._last = {v: now for (v, *_), now in zip(alive, after, strict=True) if now is not None}
            for seq, (variable, tensor, one), now in zip(seqs, alive, after, strict=False):
                if now is None or variable.holders:
                    continue
                changed = now != one.before
                lost = not changed and _may_be_lost(tensor, one.size)
                lr = "positive" if one.size > 0 else "zero"
                context = merged(variable.facts(tensor, NOBODY), lr=lr, lost=lost)
                self._recorder.change(
                    Change(seq, NO_CALL, variable.name, "parameter", "data", SOME, SOME, changed, "", context, now)
                )


def _largest(tensor: torch.Tensor) -> float:
    """The largest element of a gradient."""
    gradient = local(tensor.grad) if tensor.grad is not None else None
    return float(gradient.abs().max()) if gradient is not None and gradient.numel() else 0.0


def _may_be_lost(tensor: torch.Tensor, size: float) -> bool:
    """Whether an update of this size may be lost in rounding in every element."""
    if not tensor.is_floating_point() or not tensor.numel():
        return True
    return bool(size <= MARGIN * torch.finfo(tensor.dtype).eps * float(tensor.abs().min()))
