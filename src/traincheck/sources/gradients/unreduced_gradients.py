"""Finds the gradient of a parameter until ranks reduce it, and what `fully_shard` holds of a parameter.

With `fully_shard`, the model computes with the whole parameter, a tensor of its own. With
`set_requires_gradient_sync(False)`, the sharded parameter has no gradient yet, although a backward has made one.
Megatron adds each gradient to `main_grad` of the parameter, within the backward, and its optimizer takes it from there.

Known limitations: torch has no public way to read these tensors. A torch version with other internal names hides them.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from traincheck.sources.modules.variables import VariableCatalog

_BUFFER = "main_grad"
"""The attribute of a parameter that Megatron, Apex and Transformer Engine share."""


class UnreducedGradients:
    """Finds the unreduced gradient of a parameter. Call its methods under `hidden_from_modes`."""

    def __init__(self, catalog: VariableCatalog) -> None:
        self._catalog = catalog
        self._fsdp_params: dict[int, weakref.ref[Any]] = {}  # by the parameter's identity
        self._modules = -1  # how many were living at the last search

    def of(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """Return the gradient of `tensor`, or else its unreduced gradient."""
        if tensor.grad is not None:
            return tensor.grad
        accumulated = tensor.__dict__.get(_BUFFER)
        if isinstance(accumulated, torch.Tensor):
            return accumulated
        if not hasattr(tensor, "_local_tensor"):
            return None
        fsdp_param = self._fsdp_param_of(tensor)
        if fsdp_param is None:
            return None
        accumulated = getattr(fsdp_param, "unsharded_accumulated_grad", None)
        if accumulated is not None:
            return accumulated
        return getattr(getattr(fsdp_param, "_unsharded_param", None), "grad", None)

    def _fsdp_param_of(self, tensor: torch.Tensor) -> Any:
        param = self._look_up(tensor)
        modules = self._catalog.live_modules.living() if param is None else []
        if param is None and len(modules) != self._modules:
            self._modules = len(modules)
            self._fsdp_params = {
                id(entry.sharded_param): weakref.ref(entry) for module in modules for entry in _fsdp_params(module)
            }
            param = self._look_up(tensor)
        return param

    def _look_up(self, tensor: torch.Tensor) -> Any:
        reference = self._fsdp_params.get(id(tensor))
        fsdp_param = None if reference is None else reference()
        return fsdp_param if getattr(fsdp_param, "sharded_param", None) is tensor else None


def sharded_by_whole(modules: Iterable[torch.nn.Module]) -> dict[int, torch.Tensor]:
    """The sharded parameters in `modules` by the identity of the whole parameter that the model computes with."""
    return {
        id(whole): entry.sharded_param
        for module in modules
        for entry in _fsdp_params(module)
        if (whole := getattr(entry, "_unsharded_param", None)) is not None
    }


def _fsdp_params(module: torch.nn.Module) -> Iterator[Any]:
    """Yield the objects that `fully_shard` attached to a module, one per parameter; none for other modules."""
    if not hasattr(type(module), "_get_fsdp_state"):
        return
    state = module._get_fsdp_state()
    groups = getattr(state, "_fsdp_param_groups", None) or [getattr(state, "_fsdp_param_group", None)]
    for group in groups:
        yield from getattr(group, "fsdp_params", ())
