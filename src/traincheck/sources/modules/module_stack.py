"""Nesting: which modules a thread is in the midst of calling, also after calls that nobody told us the end of.

Note [Calls that never end]
torch tells its hooks of a call that raised an error, but not of one that was ended by an interrupt (Ctrl-C in a
notebook, an exit); and it tells those of the end of a call that never came to them, as a hook before them raised. So
what is open is looked up on the stack where a module comes up that was not seen inside the outermost one before.
"""

from __future__ import annotations

import sys
from types import FrameType

MOST_KNOWN = 10_000
"""Outermost modules whose inner ones are known; a program that builds a model for each step has more."""

_DEEPEST = 12
"""Frames between us and the function of torch that calls the hook."""


class Nesting:
    """Of one thread. Modules are known by identity, and none is kept alive."""

    def __init__(self) -> None:
        self._open: list[int] = []
        self._frame: FrameType | None = None  # of torch's call of the outermost
        self._inside: set[int] = set()
        self._known: dict[int, set[int]] = {}

    def __len__(self) -> int:
        return len(self._open)

    def begins(self, module: object) -> int:
        """A module is called; how deep that is, one for the outermost. Calls around it that were interrupted are
        forgotten."""
        key, opened = id(module), self._open
        if opened and key not in self._inside:
            if _runs(self._frame):
                self._inside.add(key)
            else:
                opened.clear()
        opened.append(key)
        depth = len(opened)
        if depth > 1:
            return depth
        self._frame = _of_torch()
        if len(self._known) > MOST_KNOWN:
            self._known.clear()
        self._inside = self._known.setdefault(key, set())
        return 1

    def ends(self, module: object) -> int:
        """A call of a module ends: how many calls end with it, those inside it that were interrupted among them; 0 for
        one whose beginning was not seen."""
        key, opened = id(module), self._open
        count = 1
        while opened and count <= len(opened) and opened[-count] != key:
            count += 1
        if count > len(opened):
            return 0
        del opened[-count:]
        if not opened:
            self._frame = None
        return count


def _of_torch() -> FrameType | None:
    """The frame that calls a module."""
    frame: FrameType | None = sys._getframe(2)
    for _ in range(_DEEPEST):
        if frame is None or frame.f_globals.get("__name__") == "torch.nn.modules.module":
            return frame
        frame = frame.f_back
    return None


def _runs(wanted: FrameType | None) -> bool:
    """Whether a frame is still on the stack; of one that is not known it is taken to be so."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame is not wanted:
        frame = frame.f_back
    return wanted is None or frame is wanted
