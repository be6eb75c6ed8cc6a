"""Gradients that `fully_shard` keeps to itself until ranks reduce them: with `set_requires_gradient_sync(False)`, the
parameter that a program knows has none for now, though a backward has made one.

Known limitations: torch has no public way to ask for them. Where the names below are others, they are not seen.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any

import torch

from traincheck.sources.modules.variables import Catalog


class KeptGradients:
    """Finds the gradient that is kept for a parameter. Call its methods under `unseen`."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._keepers: dict[int, weakref.ref[Any]] = {}  # by the parameter's identity
        self._modules = -1  # how many were known when keepers were looked for

    def of(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """The gradient of `tensor`, or else the one that is kept for it."""
        if tensor.grad is not None or not hasattr(tensor, "_local_tensor"):
            return tensor.grad
        keeper = self._keeper_of(tensor)
        if keeper is None:
            return None
        kept = getattr(keeper, "unsharded_accumulated_grad", None)
        return kept if kept is not None else getattr(getattr(keeper, "_unsharded_param", None), "grad", None)

    def _keeper_of(self, tensor: torch.Tensor) -> Any:
        found = self._look_up(tensor)
        modules = self._catalog.known.living() if found is None else []
        if found is None and len(modules) != self._modules:
            self._modules = len(modules)
            self._keepers = {id(one.sharded_param): weakref.ref(one) for module in modules for one in _keepers(module)}
            found = self._look_up(tensor)
        return found

    def _look_up(self, tensor: torch.Tensor) -> Any:
        reference = self._keepers.get(id(tensor))
        keeper = None if reference is None else reference()
        return keeper if getattr(keeper, "sharded_param", None) is tensor else None


def _keepers(module: torch.nn.Module) -> Iterator[Any]:
    """What `fully_shard` has put beside a module for each of its parameters; nothing for other modules."""
    if not hasattr(type(module), "_get_fsdp_state"):
        return
    state = module._get_fsdp_state()
    groups = getattr(state, "_fsdp_param_groups", None) or [getattr(state, "_fsdp_param_group", None)]
    for group in groups:
        yield from getattr(group, "fsdp_params", ())
