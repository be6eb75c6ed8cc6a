"""Finds states that a program keeps for later and that change meanwhile, because they share the model's memory.

`state_dict()` returns the model's own memory. A program that keeps the best weights this way, and loads them at the
end, loads the last weights. TrainCheck remembers a tensor of each returned state, by weak reference, with the number of
updates until then. A load of this state after another update, in which each parameter is the model's own memory, is
such an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from traincheck.sources.checkpoints.state_dicts import members
from traincheck.sources.recording.patches import TensorReference
from traincheck.sources.tensors.reading import hidden_from_modes

MAX_STATES = 64
"""States remembered, the latest ones."""


class KeptStates:
    """The states that modules returned."""

    def __init__(self) -> None:
        self._returned: dict[int, tuple[TensorReference, int]] = {}

    def add(self, state: Mapping[str, Any], updates: int) -> None:
        """Remember a state that a module returned after so many updates."""
        tensor = _first_tensor(state)
        if tensor is None:
            return
        self._returned.pop(id(tensor), None)
        self._returned[id(tensor)] = TensorReference(tensor), updates
        if len(self._returned) > MAX_STATES:
            del self._returned[next(iter(self._returned))]

    def updates_since(self, module: nn.Module, state: Mapping[str, Any], updates: int) -> int:
        """Return how many updates a state has seen that a program loads, 0 if it does not share the model's memory."""
        tensor = _first_tensor(state)
        entry = None if tensor is None else self._returned.get(id(tensor))
        if entry is None or entry[0]() is not tensor or entry[1] == updates:
            return 0
        with hidden_from_modes():
            shares = all(
                _is_same_memory(member.tensor, state.get(name)) for member in members(module) for name in member.names
            )
        return updates - entry[1] if shares else 0


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
