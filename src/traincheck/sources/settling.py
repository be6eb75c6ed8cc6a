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
from traincheck.sources.tensors import SOME, fingerprints, unseen
from traincheck.sources.variables import NOBODY, Variable
from traincheck.vocab.events import NO_CALL, TRAIN, Change
from traincheck.vocab.facts import merged

MARGIN = 16
"""How many times the rounding of its smallest element an update must be to show for certain in a parameter that is
rounded from a copy: what Adam makes of a gradient is of the size of the learning rate, and less later on."""


class _Awaited(NamedTuple):
    """A variable that the step should change: what it was, and the largest learning rate."""

    before: int
    rate: float


class Settling:
    """Keeps what is awaited of the step under way."""

    def __init__(self, gradients: Gradients, recorder: Recorder) -> None:
        self._gradients = gradients
        self._recorder = recorder
        self._awaited: dict[Variable, _Awaited] = {}
        self._seqs: list[int] = []
        self._last: dict[Variable, int] = {}

    def update_begins(
        self, optimizer: str, held: Sequence[Held], data: Sequence[int | None], states: Sequence[str], rate: float
    ) -> None:
        """Note what this update should change that no optimizer holds; `data` are fingerprints, `states` those of
        gradients."""
        masters = {
            tensor.shape
            for (variable, tensor), state in zip(held, states, strict=True)
            if not variable.owned and optimizer in variable.holders and state == SOME
        }
        for (variable, tensor), before, state in zip(held, data, states, strict=True):
            if variable.holders or not variable.owned or before is None or not tensor.requires_grad:
                continue
            graded = state == SOME and variable in self._gradients.fresh
            if graded or (tensor.shape in masters and state != SOME):
                known = self._awaited.get(variable)
                first = self._last.get(variable, before) if known is None else known.before
                self._awaited[variable] = _Awaited(first, max(rate, known.rate if known else 0.0))

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
                lost = not changed and _may_be_lost(tensor, one.rate)
                lr = "positive" if one.rate > 0 else "zero"
                context = merged(variable.facts(tensor, NOBODY), lr=lr, lost=lost)
                self._recorder.change(
                    Change(seq, NO_CALL, variable.name, "parameter", "data", SOME, SOME, changed, "", context, now)
                )


def _may_be_lost(tensor: torch.Tensor, rate: float) -> bool:
    """Whether an update of the size of the learning rate may be lost in rounding in every element."""
    if not tensor.is_floating_point() or not tensor.numel():
        return True
    return bool(rate <= MARGIN * torch.finfo(tensor.dtype).eps * float(tensor.abs().min()))
