"""Tracks which modules a thread is calling, including after calls whose end was never reported.

Note [Calls that never end]
torch calls its hooks after a call that raised an error, but not after a call ended by an interrupt (Ctrl-C in a
notebook, an exit). It also reports the end of calls whose begin was not reported, because an earlier hook raised. So
when a module appears that was not seen inside the outermost one before, TrainCheck checks the interpreter's stack.
"""

from __future__ import annotations

import sys
from types import FrameType

MAX_OUTERMOST = 10_000
"""Maximum number of outermost modules with recorded inner modules. A program that builds a model in each step has more.
"""

_DEEPEST = 12
"""Maximum number of frames between TrainCheck and the function of torch that calls the hook."""


class ModuleStack:
    """The module calls of one thread. Modules are identified by `id`, so none is kept alive."""

    def __init__(self) -> None:
        self.calls: list[int] = []  # read only, by code that must not call a function
        self._frame: FrameType | None = None  # the frame of torch that calls the outermost module
        self._inside: set[int] = set()
        self._inner_modules: dict[int, set[int]] = {}

    def __len__(self) -> int:
        return len(self.calls)

    def push(self, module: object) -> int:
        """A module is called: return its depth, 1 for the outermost. Interrupted calls around it are dropped."""
        key, calls = id(module), self.calls
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
        """A module call ends: return how many calls end with it, including interrupted ones inside it. The result is 0
        if its begin was not seen."""
        key, calls = id(module), self.calls
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
    """Whether a frame is still on the stack; an unknown frame counts as running."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame is not target:
        frame = frame.f_back
    return target is None or frame is target
