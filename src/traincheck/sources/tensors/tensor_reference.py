"""Weak references to tensors of the program, which `torch.utils.swap_tensors` does not see.

torch refuses to swap a tensor that has a weak reference, and swaps parameters in `Module.to` if they are of a subclass
(quantized or sharded ones) or if the program asks for it. A reference of TrainCheck stays right, because a swap keeps
the identity of both tensors.
"""

from __future__ import annotations

import types
import weakref
from collections.abc import Callable
from typing import Any

import torch

from traincheck.sources.base import replace
from traincheck.sources.recording.patches import UndoStack


class TensorReference(weakref.ref[torch.Tensor]):
    """A weak reference to a tensor of the program. All those that TrainCheck keeps are of this class."""

    __slots__ = ()


def hide_references(undo: UndoStack) -> None:
    """Let torch not see references of TrainCheck when it asks for those to a tensor, until `undo` is closed."""
    replace(undo, torch.utils, "weakref", _without_ours)


def _without_ours(module: types.ModuleType) -> types.ModuleType:
    """Return a module that is the same as `weakref`, but that does not list references of TrainCheck."""
    same = types.ModuleType(module.__name__, module.__doc__)
    vars(same).update(vars(module))
    get: Callable[[Any], list[Any]] = module.getweakrefs
    vars(same)["getweakrefs"] = lambda referent: [ref for ref in get(referent) if type(ref) is not TensorReference]
    return same
