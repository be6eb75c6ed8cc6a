"""Finds states that a program loads into the model whose memory they are, so that the load changes nothing.

`state_dict()` returns the model's own memory. A program that keeps the best weights this way, and loads them at the
end, loads the last weights. If a target network is the network itself, and not a copy, it loads what it has. So does a
program that takes the state of a model, writes those entries of a file into it that have the same name, and finds none.

TrainCheck remembers a tensor of each returned state, by weak reference, with the number of updates until then and the
versions of all tensors. A load of this state, in which each parameter is the model's own memory, is such an error, if
there was another update, or if training has begun and nothing has written to the state. (A program may average the
tensors of a state in place, and load it for clarity.)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from traincheck.sources.checkpoints.state_dicts import members
from traincheck.sources.recording.patches import TensorReference
from traincheck.sources.tensors.reading import hidden_from_modes
from traincheck.sources.tensors.storages import version_of

MAX_STATES = 64
"""States remembered, the latest ones."""


class KeptStates:
    """The states that modules returned."""

    def __init__(self) -> None:
        self._returned: dict[int, tuple[TensorReference, int, int]] = {}

    def add(self, state: Mapping[str, Any], updates: int) -> None:
        """Remember a state that a module returned after so many updates."""
        tensor = _first_tensor(state)
        if tensor is None:
            return
        self._returned.pop(id(tensor), None)
        with hidden_from_modes():
            self._returned[id(tensor)] = TensorReference(tensor), updates, _versions(state)
        if len(self._returned) > MAX_STATES:
            del self._returned[next(iter(self._returned))]

    def updates_since(self, module: nn.Module, state: Mapping[str, Any], updates: int) -> int | None:
        """Return how many updates a state has seen that a program loads, None if the load may change something."""
        tensor = _first_tensor(state)
        reference, updates_then, versions = self._returned.get(id(tensor), (None, 0, 0))
        if reference is None or reference() is not tensor:
            return None
        with hidden_from_modes():
            if updates == updates_then and (not updates or versions != _versions(state)):
                return None
            shares = all(
                _is_same_memory(member.tensor, state.get(name)) for member in members(module) for name in member.names
            )
        return updates - updates_then if shares else None


def _versions(state: Mapping[str, Any]) -> int:
    """A number that grows with each write to a tensor of a state. Call inside `hidden_from_modes()`."""
    return sum(version_of(value) or 0 for value in state.values() if isinstance(value, torch.Tensor))


def _first_tensor(state: Mapping[str, Any]) -> torch.Tensor | None:
    return next((value for value in state.values() if isinstance(value, torch.Tensor)), None)


def _is_same_memory(tensor: torch.Tensor, other: Any) -> bool:
    return (
        type(other) in (torch.Tensor, nn.Parameter)
        and other.layout == tensor.layout == torch.strided
        and other.untyped_storage().data_ptr() == tensor.untyped_storage().data_ptr()
        and other.storage_offset() == tensor.storage_offset()
        and other.shape == tensor.shape
    )
