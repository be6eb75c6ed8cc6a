"""Computes the outputs of a model for a captured batch, with other tensors in the place of its own.

The model itself computes, in evaluation mode, and nothing of it is copied but tensors: `torch.func.functional_call`
puts them in for the time of the call. A deep copy would run code of the program, and copy everything that a module
refers to.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from types import MappingProxyType
from typing import Any

import torch
from torch import nn
from torch.func import functional_call
from torch.utils._pytree import tree_leaves, tree_map

from traincheck.sources.modules.live_modules import buffers_of
from traincheck.sources.replay.state_snapshot import (
    AttributeSnapshot,
    RandomStates,
    autocast_settings,
    has_compiled_code,
    iterator_of,
    without_hooks,
)
from traincheck.sources.tensors.reading import hidden_from_modes, is_copyable, kind_of
from traincheck.sources.verification.round_trips.unsaved_state import MISSING, Place

MAX_BYTES = 1 << 30
"""A model with more bytes of parameters and buffers is not executed, nor is a larger batch kept."""

ROUNDING = 1000
"""Differences up to this many unit roundoffs of the largest output are rounding, as of a cache that is built again."""


class CannotCompute(Exception):
    """The outputs of a model cannot be computed once more; the message is the reason."""


class CapturedBatch:
    """The arguments of a call of a model. Raises CannotCompute where they cannot be copied."""

    def __init__(self, model: nn.Module, args: Any, keywords: Any) -> None:
        self._arguments = _cloned((tuple(args), dict(keywords)))
        self._autocast = autocast_settings()
        tensors = _tensors(self._arguments)
        self.size = next((len(tensor) for tensor in tensors if tensor.dim()), 0)
        if sum(tensor.nbytes for tensor in (*tensors, *model.parameters(), *buffers_of(model))) > MAX_BYTES:
            raise CannotCompute("the model is too large")

    def outputs(
        self,
        model: nn.Module,
        tensors: Mapping[int, torch.Tensor] = MappingProxyType({}),
        unsaved: Mapping[Place, Any] = MappingProxyType({}),
    ) -> list[torch.Tensor]:
        """Return the outputs with other values of tensors (by identity of the tensor) and of unsaved state.

        Afterwards the model and the random states are as before. Raises CannotCompute.
        """
        if has_compiled_code():
            raise CannotCompute("the program compiles code")
        modules = dict(model.named_modules())
        iterator = iterator_of(modules.values())
        if iterator:
            raise CannotCompute(f"the model holds a {iterator}, which another execution would advance")
        replaced = _copies(model, tensors, unsaved)
        held, random = AttributeSnapshot(modules.values()), RandomStates()
        try:
            with ExitStack() as stack:
                stack.enter_context(_in_evaluation(modules.values()))
                stack.enter_context(without_hooks(list(modules.values()), ()))
                for place, value in unsaved.items():
                    if not place.is_buffer:
                        _put(modules[place.module].__dict__, place.attribute, value)
                for autocast in self._autocast:
                    stack.enter_context(torch.autocast(**autocast))
                stack.enter_context(torch.no_grad())
                args, keywords = _cloned(self._arguments)
                outputs = _tensors(functional_call(model, replaced, args, keywords, tie_weights=False))
        except Exception as error:
            raise CannotCompute(f"{type(error).__name__}: {error}".partition("\n")[0]) from error
        finally:
            held.restore()
            random.restore()
        if not outputs:
            raise CannotCompute("its result holds no tensors")
        return [output.detach().clone() for output in outputs]


def _put(attributes: dict[str, Any], name: str, value: Any) -> None:
    if value is MISSING:
        attributes.pop(name, None)
    else:
        attributes[name] = value


def _copies(
    model: nn.Module, tensors: Mapping[int, torch.Tensor], unsaved: Mapping[Place, Any]
) -> dict[str, torch.Tensor]:
    """Copies of all parameters and buffers by name, because a forward may write to them."""
    copies: dict[int, torch.Tensor] = {}
    named = {}
    for prefix, module in model.named_modules(remove_duplicate=False):
        for name, tensor in (*module._parameters.items(), *module._buffers.items()):
            if tensor is None:
                continue
            value = unsaved.get(Place(prefix, name, is_buffer=True), tensors.get(id(tensor), tensor))
            with hidden_from_modes():
                if not (isinstance(value, torch.Tensor) and is_copyable(tensor) and is_copyable(value)):
                    raise CannotCompute(f"it holds {name}, which cannot be copied")
                if value.shape != tensor.shape:
                    raise CannotCompute(f"{name} had another shape")
                if id(tensor) not in copies:
                    copies[id(tensor)] = torch.empty_like(tensor).copy_(value)
            named[f"{prefix}.{name}" if prefix else name] = copies[id(tensor)]
    return named


def differ(one: Sequence[torch.Tensor], other: Sequence[torch.Tensor], *, by_rounding: bool = False) -> bool:
    """Whether outputs have other bits; with `by_rounding`, whether they differ by more than rounding."""
    if len(one) != len(other):
        return True
    for mine, theirs in zip(one, other, strict=True):
        if mine.shape != theirs.shape or mine.dtype != theirs.dtype:
            return True
        if torch.equal(mine, theirs) or torch.equal(mine.nan_to_num(), theirs.nan_to_num()):
            continue
        if not by_rounding or not (mine.is_floating_point() or mine.is_complex()):
            return True
        limit = ROUNDING * torch.finfo(mine.dtype).eps * float(mine.abs().nan_to_num(posinf=0.0).max())
        if not bool(((mine - theirs).abs() <= limit).all()):
            return True
    return False


@contextmanager
def _in_evaluation(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Switch modules to evaluation without calling their methods."""
    before = [(vars(module), vars(module).get("training")) for module in modules]
    try:
        for attributes, training in before:
            if training is not None:
                attributes["training"] = False
        yield
    finally:
        for attributes, training in before:
            if training is not None:
                attributes["training"] = training


def _tensors(value: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(value) if type(leaf) in (torch.Tensor, nn.Parameter)]


def _cloned(value: Any) -> Any:
    def clone(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        if not is_copyable(leaf):
            raise CannotCompute(f"it is given a {kind_of(leaf)}, which TrainCheck does not copy")
        return leaf.detach().clone()

    with hidden_from_modes():
        return tree_map(clone, value)
