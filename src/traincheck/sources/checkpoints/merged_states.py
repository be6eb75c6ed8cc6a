"""Finds states of a model that take weights of another model, and that the program forgets to load.

`state_dict()` returns a new dictionary. A program that writes pretrained weights into it changes nothing in the model
before it calls `load_state_dict`. Without that call, the model starts from random weights, and the program may even
freeze them.

TrainCheck remembers the states that modules and `torch.load` return, by weak reference. When an optimizer steps first
with parameters of a module, some entries of its state may be tensors of another one. It is such an error if the module
has none of their values, and nothing has loaded them. (A program may also keep averages, masks or directions in a
state. Those are no tensors of another state.)
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import nn

from traincheck.sources.checkpoints.state_dicts import PARAMETER, members, same_memory
from traincheck.sources.recording.patches import TensorReference
from traincheck.sources.tensors.reading import hidden_from_modes, is_varied, leading_floats

MAX_STATES, MAX_TENSORS = 64, 100_000
"""States remembered, the latest ones, and tensors of states."""


_Owned = tuple[TensorReference, weakref.ref[nn.Module] | None]
"""A tensor of a state, and the module that returned the state; None for a file."""


class _State:
    """A state that a module returned, the line that called for it, and whether it waits for the first update."""

    __slots__ = ("is_loaded", "mapping", "module", "site", "waits")

    def __init__(self, state: Any, module: nn.Module, site: str) -> None:
        self.mapping, self.module = weakref.ref(state), weakref.ref(module)
        self.site, self.waits, self.is_loaded = site, True, False


class MergedStates:
    """The states that modules returned."""

    def __init__(self) -> None:
        self._states: list[_State] = []
        self._tensors: dict[int, _Owned] = {}  # of all states
        self._waits = False

    def add(self, state: Any, module: nn.Module, site: str) -> None:
        """Remember a state that a module returned."""
        try:
            new = _State(state, module, site)
        except TypeError:
            return  # a plain dict allows no weak reference; some libraries return it
        self.add_tensors(state, module)
        living = [known for known in self._states if known.mapping() is not None]
        self._states = [*living[1 - MAX_STATES :], new]
        self._waits = True

    def add_tensors(self, state: Mapping[str, Any], module: nn.Module | None = None) -> None:
        """Remember the tensors of a state that a module or a file holds."""
        tensors, owner = self._tensors, None if module is None else weakref.ref(module)

        def forget(key: int) -> Callable[[Any], Any]:
            return lambda _: tensors.pop(key, None)

        for value in state.values():
            if isinstance(value, torch.Tensor) and len(tensors) < MAX_TENSORS:
                tensors[id(value)] = TensorReference(value, forget(id(value))), owner

    def note_load(self, loaded: Mapping[str, Any]) -> None:
        """The program loads a state into some module."""
        tensors = {id(value) for value in loaded.values()} if self._waits else set()
        for state in self._states if tensors else ():
            if state.waits and any(id(value) in tensors for _, value in self._taken(state)):
                state.is_loaded = True

    def forgotten(self, optimizer: Any) -> Iterator[tuple[nn.Module, str, int]]:
        """The modules that this optimizer is about to update and that have not loaded such a state, each with the line
        that called for the state, and how many parameters the state took from another one."""
        if not self._waits:
            return
        updated = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        for state in self._states:
            module = state.module()
            if not state.waits or module is None or not any(id(value) in updated for value in module.parameters()):
                continue
            state.waits = False
            with hidden_from_modes():
                differ = [_differs(parameter, value) for parameter, value in self._taken(state)]
            if True in differ and False not in differ and not state.is_loaded:
                yield module, state.site, differ.count(True)
        self._waits = any(state.waits for state in self._states)

    def _taken(self, state: _State) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """The parameters for which a state holds a tensor of another module's state, with these tensors."""
        mapping, module = state.mapping(), state.module()
        if mapping is None or module is None:
            return []
        return [
            (member.tensor, mapping[name])
            for member in members(module)
            for name in member.names
            if member.kind == PARAMETER and self._is_of_another(mapping.get(name), module)
        ]

    def _is_of_another(self, value: Any, module: nn.Module) -> bool:
        reference, owner = self._tensors.get(id(value), (None, None))
        return reference is not None and reference() is value and (owner is None or owner() is not module)


def _differs(parameter: torch.Tensor, value: Any) -> bool | None:
    """Whether a parameter has other values than a tensor of its shape; None if that cannot be said."""
    if not isinstance(value, torch.Tensor) or same_memory(parameter, value) or parameter.shape != value.shape:
        return None
    ours, others = leading_floats(parameter), leading_floats(value)
    if ours is None or others is None or ours.shape != others.shape or not is_varied(others):
        return None
    return not torch.equal(ours.to("cpu", torch.float64), others.to("cpu", torch.float64))
