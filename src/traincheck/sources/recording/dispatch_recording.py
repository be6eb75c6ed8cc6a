"""A dispatch mode that records operations of one thread, and is on the stack of modes only for a while."""

from __future__ import annotations

from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack, _pop_mode, _push_mode

COLLISION = "the program uses a dispatch mode of its own"


class DispatchRecording(TorchDispatchMode):  # type: ignore[misc]  # torch does not say what it is
    """Goes on the stack only where no mode of the program is. A subclass says what follows if the program uses one."""

    @property
    def is_on(self) -> bool:
        """Whether the mode is on the stack of this thread."""
        return any(mode is self for mode in _get_current_dispatch_mode_stack())

    def turn_on(self) -> None:
        """Record the operations of this thread from now on, unless the recording is over."""
        if self._is_over() or self.is_on:
            return
        if all(isinstance(mode, DispatchRecording) for mode in _get_current_dispatch_mode_stack()):
            _push_mode(self)
        else:
            self._collides(COLLISION)

    def turn_off(self) -> None:
        """Record nothing until `turn_on`. Under a mode of the program, the mode stays and lets everything pass."""
        above: list[DispatchRecording] = []
        for mode in reversed(_get_current_dispatch_mode_stack()):
            if mode is self:
                for _ in range(len(above) + 1):
                    _pop_mode()
                for other in reversed(above):
                    _push_mode(other)
                return
            if not isinstance(mode, DispatchRecording):
                break
            above.append(mode)
        if self.is_on:
            self._collides(COLLISION)

    def _is_over(self) -> bool:
        """Whether nothing more is recorded."""
        raise NotImplementedError

    def _collides(self, reason: str) -> None:
        """The program uses a mode while this one should go on or off the stack."""
        raise NotImplementedError
