"""Kept states: fingerprints of what optimizers keep for each variable, before and after a step.

An optimizer keeps as much as the model itself, or twice that, and nobody else writes to it. So what was read after one
step is not read again before the next one where torch, which counts writes, has counted none. (A write through `.data`
is not counted: it would be told as one of the step's. The fingerprint after the step is always that of what is there.)
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from traincheck.sources.gradients.gradients import Held
from traincheck.sources.modules.variables import Variable
from traincheck.sources.tensors.deferred_values import Pending
from traincheck.sources.tensors.reading import SOME, Computed, computed
from traincheck.sources.tensors.storages import version_of

Entry = tuple[int, str]
"""The place of a variable among those that are held, and what the optimizer calls what it keeps for it."""

_Key = tuple[Variable, str]
"""The same, but for the place, which may be another one in the next step."""


class _Read(NamedTuple):
    """A tensor as it was when it was read."""

    tensor: weakref.ref[torch.Tensor]
    version: int | None
    fingerprint: Computed

    def still(self, tensor: torch.Tensor) -> bool:
        """Whether that is what `tensor` is now."""
        return self.tensor() is tensor and self.version is not None and version_of(tensor) == self.version


class KeptStates:
    """Of all optimizers. Call its methods under `unseen`."""

    def __init__(self) -> None:
        self._read: dict[str, dict[_Key, _Read]] = {}

    def before(self, name: str, optimizer: Any, held: Sequence[Held], places: Sequence[int]) -> dict[Entry, Computed]:
        """The fingerprints of what `optimizer`, called `name`, keeps for the variables at these places now, at the
        beginning of a step."""
        known = self._read.pop(name, {})
        entries, tensors = _kept(optimizer, held, places)
        reads = [known.get(_key(entry, held)) for entry in entries]
        found = {
            entry: read.fingerprint
            for entry, tensor, read in zip(entries, tensors, reads, strict=True)
            if read is not None and read.still(tensor)
        }
        unread = [place for place, entry in enumerate(entries) if entry not in found]
        for place, value in zip(unread, computed([tensors[place] for place in unread]), strict=True):
            found[entries[place]] = value
        return found

    def after(self, name: str, optimizer: Any, held: Sequence[Held], places: Sequence[int]) -> dict[Entry, Computed]:
        """The same, at the end of the step."""
        entries, tensors = _kept(optimizer, held, places)
        values = computed(tensors)
        self._read[name] = {
            _key(entry, held): _Read(weakref.ref(tensor), version_of(tensor), value)
            for entry, tensor, value in zip(entries, tensors, values, strict=True)
        }
        return dict(zip(entries, values, strict=True))

    def gone(self, name: str) -> None:
        """There is no optimizer of this name any more."""
        self._read.pop(name, None)

    def forget(self) -> None:
        """What was read may be long ago."""
        self._read.clear()


def _key(entry: Entry, held: Sequence[Held]) -> _Key:
    return held[entry[0]][0], entry[1]


def witnesses(name: str, optimizer: Any, held: Sequence[Held], gradients: Sequence[str | Pending]) -> list[int]:
    """The places of a few variables by which an optimizer shows that it keeps something: those that it holds and that
    have a gradient (and something kept, where any has), the smallest of each number of dimensions, as some optimizers
    treat vectors and matrices in different ways."""
    graded = [
        place
        for place, ((variable, _), gradient) in enumerate(zip(held, gradients, strict=True))
        if (gradient == SOME or type(gradient) is Pending) and name in variable.holders
    ]
    found: dict[int, int] = {}
    for place in [place for place in graded if optimizer.state.get(held[place][1])] or graded:
        tensor = held[place][1]
        known = found.setdefault(tensor.dim(), place)
        if tensor.numel() < held[known][1].numel():
            found[tensor.dim()] = place
    return sorted(found.values())


def _kept(optimizer: Any, held: Sequence[Held], places: Sequence[int]) -> tuple[list[Entry], list[torch.Tensor]]:
    entries: list[Entry] = []
    tensors: list[torch.Tensor] = []
    for place in places:
        tensor = held[place][1]
        for entry, value in (optimizer.state.get(tensor) or {}).items():  # None for a shard of another rank
            if isinstance(value, torch.Tensor):
                entries.append((place, str(entry)))
                tensors.append(value)
    return entries, tensors
