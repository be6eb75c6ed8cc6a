"""Reports how a step changed low-precision parameters whose full-precision master copies the optimizer holds.

Note [Master copies]
Programs often train a low-precision model through full-precision copies: the optimizer holds the copies, and the
program writes them back. So the effect on the model shows only after the update. TrainCheck reads it when it cuts the
window of the step. It reports it as changes between calls, at positions that it reserved at the end of the update.

Copies may be flat, and then their shapes identify nothing. But if a backward gives a gradient to a tensor with no
parameter's shape, that tensor is trained itself (an image, a prompt). Then the optimizer need not update the model.
(Hooks of a program may give gradients to copies of the same shape during the backward, too.)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from traincheck.sources.gradients.gradients import Gradients, Held
from traincheck.sources.modules.variables import Variable
from traincheck.sources.recording.recorder import Recorder
from traincheck.sources.tensors.deferred_values import DeferredValue, is_on_host
from traincheck.sources.tensors.device_transfers import NextSeq
from traincheck.sources.tensors.reading import SOME, Fingerprint, fingerprints, hidden_from_modes, local_tensor
from traincheck.vocab.events import NO_CALL, TRAIN, Change
from traincheck.vocab.facts import merged

SOURCE = "optimizers"

MARGIN = 16
"""Factor between an update and the rounding of the smallest element, from which the update must be visible in a
parameter rounded from a copy. An update is about the learning rate times the gradient, or at most the learning rate
with Adam."""


class _ExpectedUpdate(NamedTuple):
    """A variable that the step should change: its fingerprint before, and the approximate size of the update."""

    before: int | None
    size: float


class MasterCopies:
    """Holds the expected updates of the current step."""

    def __init__(self, gradients: Gradients, recorder: Recorder) -> None:
        self._gradients = gradients
        self._recorder = recorder
        self._expected: dict[Variable, _ExpectedUpdate] = {}
        self._seqs: list[int] = []
        self._reserved = 0  # how many positions the end of the update needs
        self._last: dict[Variable, int] = {}
        recorder.after_gap("settling", self._forget)

    def _forget(self) -> None:
        self._expected, self._seqs, self._last, self._reserved = {}, [], {}, 0

    def update_begins(
        self,
        optimizer: str,
        held: Sequence[Held],
        data: Sequence[Fingerprint],
        states: Sequence[str | DeferredValue],
        rate: float,
    ) -> None:
        """Note which variables without an optimizer this update should change. `data` are fingerprints of the
        variables, `states` those of their gradients. Call inside `hidden_from_modes()`."""
        own = [variable for variable, _ in held if optimizer in variable.holders]
        may_be_flat = not any(variable.owned for variable in own)
        masters: dict[torch.Size, list[int]] = {}
        for index, (variable, tensor) in enumerate(held):
            if not variable.owned and optimizer in variable.holders:
                masters.setdefault(tensor.shape, []).append(index)
        copies = {
            index: masters.get(tensor.shape, [])
            for index, (variable, tensor) in enumerate(held)
            if variable.owned and not variable.holders and tensor.requires_grad and data[index] is not None
        }
        copy_indices = [index for index, master_indices in copies.items() if master_indices or may_be_flat]
        if not copy_indices:
            return
        self._reserved = len(self._expected) + len(copy_indices)
        measured = sorted({measured_index for index in copy_indices for measured_index in (index, *copies[index])})
        values = [_largest(held[index][1]) for index in measured]
        variables = [held[index][0] for index in copy_indices]

        def conclude(fetched: list[Any], _: NextSeq) -> None:
            count = len(measured)
            sizes = dict(zip(measured, fetched, strict=False))
            states = dict(zip(measured, fetched[count : 2 * count], strict=True))
            flat = may_be_flat and not any(variable.graded for variable in own)
            for variable, index, before in zip(variables, copy_indices, fetched[2 * count :], strict=True):
                fresh = states[index] == SOME and variable in self._gradients.fresh
                by_copies = any(states[copy] == SOME for copy in copies[index])
                if (fresh and (copies[index] or flat)) or (states[index] != SOME and by_copies):
                    size = rate * min(1.0, max(sizes[measured_index] for measured_index in (index, *copies[index])))
                    expected = self._expected.get(variable)
                    first = self._last.get(variable, before) if expected is None else expected.before
                    self._expected[variable] = _ExpectedUpdate(first, max(size, expected.size if expected else 0.0))

        values += [*(states[index] for index in measured), *(data[index] for index in copy_indices)]
        self._recorder.transfers.when_ready(SOURCE, values, conclude, before_close=True)

    def update_ends(self) -> None:
        """Reserve the positions of the changes."""

        def conclude(_: list[Any], next_seq: NextSeq) -> None:
            while len(self._seqs) < len(self._expected):
                self._seqs.append(next_seq())

        if self._reserved:
            self._recorder.transfers.when_ready(SOURCE, (), conclude, events=self._reserved)
            self._reserved = 0

    def report(self, stage: str) -> None:
        """Report the expected updates, because the window is about to be cut."""
        if not self._expected or stage != TRAIN:
            return
        expected, self._expected = self._expected, {}
        seqs, self._seqs = self._seqs, []
        with hidden_from_modes():
            alive = [(v, t, update) for v, update in expected.items() if (t := v.tensor()) is not None]
            after = fingerprints([tensor for _, tensor, _ in alive])
            self._last = {v: now for (v, *_), now in zip(alive, after, strict=True) if now is not None}
            for seq, (variable, tensor, update), now in zip(seqs, alive, after, strict=False):
                if now is None or variable.holders:
                    continue
                changed = now != update.before
                lost = not changed and _may_be_lost(tensor, update.size)
                lr = "positive" if update.size > 0 else "zero"
                context = merged(variable.facts(tensor, ""), lr=lr, lost=lost)
                change = Change(seq, NO_CALL, variable.name, "parameter", "data", SOME, SOME, changed, "", context, now)
                self._recorder.record_changes((change,))


def _largest(tensor: torch.Tensor) -> Any:
    """The largest element of a gradient; it may be deferred."""
    gradient = local_tensor(tensor.grad) if tensor.grad is not None else None
    if gradient is None or not gradient.numel():
        return 0.0
    largest = gradient.abs().max()
    return float(largest) if is_on_host(largest) else DeferredValue((largest,), float)


def _may_be_lost(tensor: torch.Tensor, size: float) -> bool:
    """Whether an update of this size may be lost in rounding in every element."""
    dense = local_tensor(tensor)
    if dense is None or not dense.is_floating_point() or not dense.numel():
        return True
    return bool(size <= MARGIN * torch.finfo(dense.dtype).eps * float(dense.abs().min()))
