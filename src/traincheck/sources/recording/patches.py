"""Replaced: what we have put in the place of functions and methods of torch, and how it is put back."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any, NamedTuple


class Replaced(NamedTuple):
    """What was put in the place of `holder.attribute`."""

    holder: Any
    attribute: str
    original: Any
    replacement: Any

    @property
    def in_place(self) -> bool:
        """Whether nobody has replaced it again."""
        return vars(self.holder).get(self.attribute) is self.replacement

    def take_off(self) -> bool:
        """Put the original back for a while, unless somebody has replaced it again; whether it was."""
        return _swap(self.holder, self.attribute, self.replacement, self.original)

    def put_on(self) -> None:
        """Take `take_off` back."""
        _swap(self.holder, self.attribute, self.original, self.replacement)


def _swap(holder: Any, attribute: str, one: Any, other: Any) -> bool:
    if vars(holder).get(attribute) is not one:
        return False
    setattr(holder, attribute, other)
    return True


class Undo(ExitStack):
    """The undo stack of a source, which also knows what was replaced in the process."""

    def __init__(self) -> None:
        super().__init__()
        self.replaced: list[Replaced] = []

    def note(self, replaced: Replaced) -> None:
        """Note a replacement, which closing the stack takes back."""
        self.replaced.append(replaced)
        self.callback(self._put_back, replaced)

    def _put_back(self, replaced: Replaced) -> None:
        self.replaced.remove(replaced)
        replaced.take_off()
