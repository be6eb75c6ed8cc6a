"""A dispatch mode that records operations of one thread, and is on the stack of modes only for a while.

Note [Scopes that restore modes]
`torch.inference_mode` and the transforms of `torch.func` save which dispatch keys are active, and restore them at their
end. If a mode goes off the stack inside such a scope that began while it was on, torch calls a mode that is gone, and
the next operation of the program raises. So the mode stays on the stack and lets everything pass, until the program has
left that scope.
"""

from __future__ import annotations

import threading
from typing import NamedTuple

import torch
from torch._C._functorch import maybe_current_level
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack, _pop_mode, _push_mode

COLLISION = "the program uses a dispatch mode of its own"


class _Lingering(threading.local):
    def __init__(self) -> None:
        self.modes: list[DispatchRecording] = []


_lingering = _Lingering()


class DispatchRecording(TorchDispatchMode):  # type: ignore[misc]  # torch does not say what it is
    """Goes on the stack only where no mode of the program is. A subclass says what follows if the program uses one.

    While `lingers` is true, a subclass lets all operations pass.
    """

    def __init__(self) -> None:
        super().__init__()
        self.lingers = False
        self._scope = _Scope(False, 0)

    @property
    def is_on(self) -> bool:
        """Whether the mode is on the stack of this thread, and records."""
        return not self.lingers and any(mode is self for mode in _get_current_dispatch_mode_stack())

    def turn_on(self) -> None:
        """Record the operations of this thread from now on, unless the recording is over."""
        remove_lingering()
        if self._is_over() or self.is_on or self.lingers or torch.is_inference_mode_enabled():
            return
        if all(isinstance(mode, DispatchRecording) for mode in _get_current_dispatch_mode_stack()):
            self._scope = _scope()
            _push_mode(self)
        else:
            self._collides(COLLISION)

    def turn_off(self) -> None:
        """Record nothing until `turn_on`. Under a mode of the program, the mode stays and lets everything pass."""
        remove_lingering()
        if not self.is_on:
            return
        if _scope().is_inside(self._scope):
            self.lingers = True
            _lingering.modes.append(self)
        elif not self._leave():
            self._collides(COLLISION)

    def _leave(self) -> bool:
        """Go off the stack, if only other recordings are above. Whether that was possible."""
        above: list[DispatchRecording] = []
        for mode in reversed(_get_current_dispatch_mode_stack()):
            if mode is self:
                for _ in range(len(above) + 1):
                    _pop_mode()
                for other in reversed(above):
                    _push_mode(other)
                return True
            if not isinstance(mode, DispatchRecording):
                return False
            above.append(mode)
        return True

    def _has_left(self) -> bool:
        """Leave after lingering, if this is the scope to do so."""
        self.lingers = _scope().is_inside(self._scope) or not self._leave()
        return not self.lingers

    def _is_over(self) -> bool:
        """Whether nothing more is recorded."""
        raise NotImplementedError

    def _collides(self, reason: str) -> None:
        """The program uses a mode while this one should go on or off the stack."""
        raise NotImplementedError


def remove_lingering() -> None:
    """Take modes off the stack that wait for the end of a scope, see Note [Scopes that restore modes]."""
    if _lingering.modes:
        _lingering.modes[:] = [mode for mode in _lingering.modes if not mode._has_left()]


class _Scope(NamedTuple):
    """Where the program is: in inference mode, and inside how many transforms of `torch.func`."""

    inference: bool
    transforms: int

    def is_inside(self, other: _Scope) -> bool:
        return self.inference > other.inference or self.transforms > other.transforms


def _scope() -> _Scope:
    return _Scope(torch.is_inference_mode_enabled(), maybe_current_level() or 0)
