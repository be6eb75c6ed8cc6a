"""Patches of torch's functions and methods, which can be removed for a while and are undone at the end.

Note [References to tensors]
`torch.utils.swap_tensors` refuses a tensor that has a weak reference. torch swaps parameters in `Module.to` if they are
of a subclass (quantized or sharded ones), or if the program asks for it. A reference of TrainCheck stays right, because
a swap keeps the identity of both tensors. So torch does not see it.
"""

from __future__ import annotations

import types
import weakref
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import torch

    _Reference = weakref.ref[torch.Tensor]
else:
    _Reference = weakref.ref  # sources are declared where torch is missing


class Patch(NamedTuple):
    """A replacement of `holder.attribute`. One that is `only_watched` does nothing in windows that are not watched."""

    holder: Any
    attribute: str
    original: Any
    replacement: Any
    only_watched: bool = False

    @property
    def is_current(self) -> bool:
        """Whether the attribute still is our replacement: the program may have patched it again."""
        return vars(self.holder).get(self.attribute) is self.replacement

    def remove(self) -> bool:
        """Restore the original; False where the program has patched the attribute again."""
        return _swap(self.holder, self.attribute, self.replacement, self.original)

    def reapply(self) -> None:
        """Undo `remove`."""
        _swap(self.holder, self.attribute, self.original, self.replacement)


class PatchSuspension:
    """Removes patches that are `only_watched` between watched windows, see `Suspendable`.

    `patches` are those of all sources. A program may patch an attribute while ours is removed. TrainCheck cannot
    resume then, because a window without the patch would look like a program that makes fewer calls.
    """

    def __init__(self, patches: list[list[Patch]]) -> None:
        self._patches = patches
        self._removed: list[Patch] = []
        self._suspended = False

    def suspend(self) -> None:
        """See `Suspendable`."""
        if not self._suspended:
            self._suspended = True
            selected = [patch for of_source in self._patches for patch in of_source if patch.only_watched]
            self._removed = [patch for patch in reversed(selected) if patch.remove()]

    def can_resume(self) -> bool:
        """See `Suspendable`."""
        innermost = {(id(patch.holder), patch.attribute): patch for patch in self._removed}  # sources share attributes
        return all(vars(patch.holder).get(patch.attribute) is patch.original for patch in innermost.values())

    def resume(self) -> None:
        """See `Suspendable`. A source that was detached meanwhile has dropped its patches."""
        self._suspended = False
        while self._removed:
            patch = self._removed.pop()
            if any(other is patch for of_source in self._patches for other in of_source):
                patch.reapply()


def _swap(holder: Any, attribute: str, current: Any, new: Any) -> bool:
    if vars(holder).get(attribute) is not current:
        return False
    setattr(holder, attribute, new)
    return True


class UndoStack(ExitStack):
    """The undo stack of a source, which also lists the patches of that source.

    `everywhere` lists the functions that were replaced in all modules of a package, as pairs of the original and its
    replacement, by package and name.
    """

    def __init__(self) -> None:
        super().__init__()
        self.patches: list[Patch] = []
        self.everywhere: dict[str, dict[str, list[tuple[Any, Any]]]] = {}

    def add_patch(self, patch: Patch) -> None:
        """Remove `patch` when this stack is closed."""
        self.patches.append(patch)
        self.callback(self._undo, patch)

    def _undo(self, patch: Patch) -> None:
        self.patches.remove(patch)
        patch.remove()


class TensorReference(_Reference):
    """A weak reference to a tensor of the program: see Note [References to tensors]."""

    __slots__ = ()


def without_our_references(module: types.ModuleType) -> types.ModuleType:
    """Return a module that is the same as `weakref`, but that does not list references of TrainCheck."""
    same = types.ModuleType(module.__name__, module.__doc__)
    vars(same).update(vars(module))
    get: Callable[[Any], list[Any]] = module.getweakrefs
    vars(same)["getweakrefs"] = lambda referent: [ref for ref in get(referent) if type(ref) is not TensorReference]
    return same
