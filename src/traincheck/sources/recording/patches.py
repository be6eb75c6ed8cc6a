"""Patches of torch's functions and methods, which can be removed for a while and are undone at the end."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any, NamedTuple


class Patch(NamedTuple):
    """A replacement of `holder.attribute`."""

    holder: Any
    attribute: str
    original: Any
    replacement: Any

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


def _swap(holder: Any, attribute: str, current: Any, new: Any) -> bool:
    if vars(holder).get(attribute) is not current:
        return False
    setattr(holder, attribute, new)
    return True


class UndoStack(ExitStack):
    """The undo stack of a source, which also lists the patches of that source."""

    def __init__(self) -> None:
        super().__init__()
        self.patches: list[Patch] = []

    def add_patch(self, patch: Patch) -> None:
        """Remove `patch` when this stack is closed."""
        self.patches.append(patch)
        self.callback(self._undo, patch)

    def _undo(self, patch: Patch) -> None:
        self.patches.remove(patch)
        patch.remove()
