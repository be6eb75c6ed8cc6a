"""Module calls: torch's global hooks around the calls of modules, shared by the sources that listen to them.

Note [Hooks that are off]
A global hook slows down each call of each module. While no events are taken it is only asked which outermost module is
called next, as far as that tells where a step begins: a hook waits for that, and comes off as soon as it was told.
Where the program is in the midst of a call, the hooks stay, and it is only counted how deep calls are.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from types import FrameType
from typing import Any

from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from traincheck.sources.known_modules import INSIDE, wraps_compiled
from traincheck.sources.nesting import Nesting
from traincheck.sources.recorder import Recorder
from traincheck.sources.traced import EXPORTS, FLAGS, is_traced

Begins = Callable[[nn.Module, Any], object]
Ends = Callable[[nn.Module, Any, Any], object]


SOURCE = "modules"


class _Depth(threading.local):
    def __init__(self) -> None:
        self.nesting = Nesting()
        self.ended = 0  # calls that ended with the one whose end is told just now, itself among them
        self.noted = False  # whether it is known that this thread calls modules


class ModuleCalls:
    """Calls listeners (which must not raise) before and after each call of a module, in the order in which they came.

    The first one follows how deep calls are. It also listens where no events are taken; `passed` is called when the end
    of what it was told last will not be. Of what the compiler puts around a module they hear nothing: it hands on to
    the module inside, of which they are told as if it were called by itself.
    """

    def __init__(self) -> None:
        self._begins: list[Begins] = []
        self._ends: list[Ends] = []
        self._hooked = ExitStack()
        self._listening = False
        self._off = False
        self._depth = _Depth()

    @property
    def depth(self) -> int:
        """How many calls of modules this thread is in; the outermost is the first."""
        return len(self._depth.nesting)

    @property
    def ended(self) -> int:
        """How many calls of this thread end with the one whose end is told: itself, and those that were interrupted
        inside it, see Note [Calls that never end]."""
        return self._depth.ended

    def attach(
        self, undo: ExitStack, recorder: Recorder, begins: Begins, ends: Ends, passed: Callable[..., object]
    ) -> None:
        """Begin to call the first listener."""
        self._recorder = recorder
        self._passed = passed
        self._begins.clear()  # where they are attached anew, listeners come again
        self._ends.clear()
        self.listen(begins, ends)
        self._hook_both()
        recorder.gaps.costly.append(self)
        undo.callback(self._unhook)

    def listen(self, begins: Begins, ends: Ends | None = None) -> None:
        """Call these, too."""
        self._begins.append(begins)
        if ends is not None:
            self._ends.append(ends)

    def _hook_both(self) -> None:
        self._hook(register_module_forward_pre_hook(self._before), self._before)
        self._hook(register_module_forward_hook(self._after, always_call=True), self._after)

    def _before(self, module: nn.Module, args: Any) -> None:
        if self._passes_over(module):
            return
        paused = self._recorder.profiler.pause()
        try:
            if not self._depth.noted:
                self._depth.noted = True
                self._recorder.hooks.used_by_thread()
            self._nests(module)
            for begins in self._begins:
                begins(module, args)
            if self._off:  # the step that this call begins is not watched
                self._let_pass()
        finally:
            if paused:
                self._recorder.profiler.resume()

    def _after(self, module: nn.Module, args: Any, output: Any) -> None:
        if self._passes_over(module):
            return
        paused = self._recorder.profiler.pause()
        try:
            if not self._unnests(module):
                return  # its beginning was not told
            for ends in self._ends:
                ends(module, args, output)
        finally:
            if paused:
                self._recorder.profiler.resume()

    def _passes_over(self, module: nn.Module) -> bool:
        if is_traced() or FLAGS.get(EXPORTS) or self._recorder.hooks.here.aside:
            return True
        return INSIDE in module._modules and wraps_compiled(module)

    def _nests(self, module: nn.Module) -> None:
        try:
            self._depth.nesting.begins(module)
        except Exception as error:  # for want of memory
            self._recorder.fault(SOURCE, error)

    def _unnests(self, module: nn.Module) -> int:
        try:
            self._depth.ended = self._depth.nesting.ends(module)
        except Exception as error:
            self._recorder.fault(SOURCE, error)
        return self._depth.ended

    # -- while no events are taken ---------------------------------------------------------------------------------

    def take_off(self) -> None:
        """See `Costly`."""
        if self._off or in_a_call():
            return
        self._off = True
        self._unhook()
        self._recorder.steps.on_change = self._wait
        self._wait()

    def may_put_on(self) -> bool:
        """See `Costly`."""
        return not (self._off and in_a_call())

    def put_on(self) -> None:
        """See `Costly`."""
        if self._off:
            self._off = False
            self._recorder.steps.on_change = lambda: None
            self._unhook()
            self._depth = _Depth()
            self._passed(everywhere=True)
            self._hook_both()

    def _wait(self) -> None:
        """Wait for the next outermost module, if that tells anything."""
        if not self._listening and self._recorder.active and self._recorder.steps.awaits_forward:
            self._hook(register_module_forward_pre_hook(self._first), self._first)

    def _first(self, module: nn.Module, args: Any) -> None:
        if self._passes_over(module) or in_a_call():
            return
        first, *others = self._begins
        self._nests(module)
        first(module, args)
        if self._off:
            self._let_pass()
            if not self._recorder.steps.undecided:
                self._unhook()
        else:  # the step that this call begins is watched, and it was forgotten what was open before
            self._nests(module)
            for begins in others:
                begins(module, args)

    def _let_pass(self) -> None:
        self._depth.nesting = Nesting()
        self._passed(everywhere=False)

    def _hook(self, handle: Any, hook: Callable[..., object]) -> None:
        self._recorder.hooks.add(self._hooked, handle, hook)
        self._listening = True

    def _unhook(self) -> None:
        self._hooked.close()
        self._listening = False


_CALL = nn.Module._call_impl.__code__
_BEFORE = frozenset((ModuleCalls._before.__code__, ModuleCalls._first.__code__))


def in_a_call() -> bool:
    """Whether this thread is in the call of a module (but for one whose beginning our hook is just being told)."""
    frame: FrameType | None = sys._getframe(1)
    beginning = False
    while frame is not None:
        if frame.f_code is _CALL:
            if not beginning:
                return True
            beginning = False
        elif frame.f_code in _BEFORE:
            beginning = True
        frame = frame.f_back
    return False
