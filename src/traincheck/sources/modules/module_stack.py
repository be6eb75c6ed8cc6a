"""Nesting: which modules a thread is in the midst of calling, also after calls that nobody told us the end of.

Note [Calls that never end]
torch tells its hooks of a call that raised an error, but not of one that was ended by an interrupt (Ctrl-C in a
notebook, an exit); and it tells those of the end of a call that never came to them, as a hook before them raised. So
what is open is looked up on the stack where a module comes up that was not seen inside the outermost one before.
"""

from __future__ import annotations

import sys
from types import FrameType

MAX_OUTERMOST = 10_000
"""Outermost modules whose inner ones are known; a program that builds a model for each step has more."""

_DEEPEST = 12
"""Frames between us and the function of torch that calls the hook."""


class ModuleStack:
    """Of one thread. Modules are known by identity, and none is kept alive."""

    def __init__(self) -> None:
        self._calls: list[int] = []
        self._frame: FrameType | None = None  # of torch's call of the outermost
        self._inside: set[int] = set()
        self._inner_modules: dict[int, set[int]] = {}

    def __len__(self) -> int:
        return len(self._calls)

    def push(self, module: object) -> int:
        """A module is called; how deep that is, one for the outermost. Calls around it that were interrupted are
        forgotten."""
        key, calls = id(module), self._calls
        if calls and key not in self._inside:
            if _is_running(self._frame):
                self._inside.add(key)
            else:
                calls.clear()
        calls.append(key)
        depth = len(calls)
        if depth > 1:
            return depth
        self._frame = _torch_frame()
        if len(self._inner_modules) > MAX_OUTERMOST:
            self._inner_modules.clear()
        self._inside = self._inner_modules.setdefault(key, set())
        return 1

    def pop(self, module: object) -> int:
        """A call of a module ends: how many calls end with it, those inside it that were interrupted among them; 0 for
        one whose beginning was not seen."""
        key, calls = id(module), self._calls
        count = 1
        while calls and count <= len(calls) and calls[-count] != key:
            count += 1
        if count > len(calls):
            return 0
        del calls[-count:]
        if not calls:
            self._frame = None
        return count


def _torch_frame() -> FrameType | None:
    """The frame that calls a module."""
    frame: FrameType | None = sys._getframe(2)
    for _ in range(_DEEPEST):
        if frame is None or frame.f_globals.get("__name__") == "torch.nn.modules.module":
            return frame
        frame = frame.f_back
    return None


def _is_running(target: FrameType | None) -> bool:
    """Whether a frame is still on the stack; of one that is not known it is taken to be so."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame is not target:
        frame = frame.f_back
    return target is None or frame is target
