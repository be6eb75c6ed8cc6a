"""Fingerprints the state that optimizers keep for each variable, before and after a step.

An optimizer keeps as much data as the model, or twice that, and nothing else writes to it. So the reading after one
step also serves as the reading before the next one, if torch has counted no write in between. torch does not count
writes through `.data`; TrainCheck would attribute such a write to the step. The fingerprint after a step is always
fresh.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from traincheck.sources.gradients.gradients import Held
from traincheck.sources.modules.variables import Variable
from traincheck.sources.recording.patches import TensorReference
from traincheck.sources.tensors.deferred_values import DeferredValue
from traincheck.sources.tensors.reading import SOME, Fingerprint, deferred_fingerprints
from traincheck.sources.tensors.storages import version_of

Entry = tuple[int, str]
"""The index of a variable among the held ones, and the optimizer's name for the state entry."""

_Key = tuple[Variable, str]
"""The variable and the entry; indices may differ in the next step."""


class _StateReading(NamedTuple):
    """A tensor at the time of its reading."""

    tensor: weakref.ref[torch.Tensor]
    version: int | None
    fingerprint: Fingerprint

    def is_current(self, tensor: torch.Tensor) -> bool:
        """Whether `tensor` is unchanged since the reading."""
        return self.tensor() is tensor and self.version is not None and version_of(tensor) == self.version


class OptimizerStateChanges:
    """State readings of all optimizers. Call its methods inside `hidden_from_modes()`."""

    def __init__(self) -> None:
        self._last_reads: dict[str, dict[_Key, _StateReading]] = {}

    def read_before(
        self, name: str, optimizer: Any, held: Sequence[Held], indices: Sequence[int]
    ) -> dict[Entry, Fingerprint]:
        """Fingerprint the state of the variables at these indices at the beginning of a step of `optimizer`, called
        `name`."""
        previous = self._last_reads.pop(name, {})
        entries, tensors = _state_tensors(optimizer, held, indices)
        reads = [previous.get(_key(entry, held)) for entry in entries]
        fingerprints = {
            entry: read.fingerprint
            for entry, tensor, read in zip(entries, tensors, reads, strict=True)
            if read is not None and read.is_current(tensor)
        }
        unread = [index for index, entry in enumerate(entries) if entry not in fingerprints]
        for index, value in zip(unread, deferred_fingerprints([tensors[index] for index in unread]), strict=True):
            fingerprints[entries[index]] = value
        return fingerprints

    def read_after(
        self, name: str, optimizer: Any, held: Sequence[Held], indices: Sequence[int]
    ) -> dict[Entry, Fingerprint]:
        """Fingerprint the same state at the end of the step."""
        entries, tensors = _state_tensors(optimizer, held, indices)
        values = deferred_fingerprints(tensors)
        self._last_reads[name] = {
            _key(entry, held): _StateReading(TensorReference(tensor), version_of(tensor), value)
            for entry, tensor, value in zip(entries, tensors, values, strict=True)
        }
        return dict(zip(entries, values, strict=True))

    def forget_optimizer(self, name: str) -> None:
        """Drop the readings of an optimizer that no longer exists."""
        self._last_reads.pop(name, None)

    def forget(self) -> None:
        """Drop all readings, because they may be old."""
        self._last_reads.clear()


def _key(entry: Entry, held: Sequence[Held]) -> _Key:
    return held[entry[0]][0], entry[1]


def representatives(
    name: str, optimizer: Any, held: Sequence[Held], gradients: Sequence[str | DeferredValue]
) -> list[int]:
    """The indices of a few variables that show whether an optimizer keeps state.

    They are held by it and have a gradient, and state if any variable has. The smallest of each number of dimensions is
    chosen, because some optimizers treat vectors and matrices in different ways.
    """
    graded = [
        index
        for index, ((variable, _), gradient) in enumerate(zip(held, gradients, strict=True))
        if (gradient == SOME or type(gradient) is DeferredValue) and name in variable.holders
    ]
    by_dimension: dict[int, int] = {}
    for index in [index for index in graded if optimizer.state.get(held[index][1])] or graded:
        tensor = held[index][1]
        smallest = by_dimension.setdefault(tensor.dim(), index)
        if tensor.numel() < held[smallest][1].numel():
            by_dimension[tensor.dim()] = index
    return sorted(by_dimension.values())


def _state_tensors(
    optimizer: Any, held: Sequence[Held], indices: Sequence[int]
) -> tuple[list[Entry], list[torch.Tensor]]:
    entries: list[Entry] = []
    tensors: list[torch.Tensor] = []
    for index in indices:
        tensor = held[index][1]
        for entry, value in (optimizer.state.get(tensor) or {}).items():  # None for a shard of another rank
            if isinstance(value, torch.Tensor):
                entries.append((index, str(entry)))
                tensors.append(value)
    return entries, tensors
