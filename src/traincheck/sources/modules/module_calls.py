"""Hooks the calls of all modules and passes them to the sources that listen.

The hooks write out which calls they ignore, and how they measure their own time. A shared function would be two more
Python calls for each call of a module, and a profiler reports each (see tracing.py and overhead.py).

Note [Hooks that are off]
A global hook slows down every module call. While no events are taken, one hook waits for the next outermost module, and
only if its call can begin a step. It is suspended as soon as the call was reported. If the program is inside a module
call, the hooks stay attached and only count the depth of calls.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from traincheck.sources.compile.tracing import EXPORTS, FLAGS, is_traced
from traincheck.sources.modules.live_modules import ORIGINAL_MODULE, is_compile_wrapper
from traincheck.sources.modules.module_stack import ModuleStack
from traincheck.sources.recording.listener import RecorderListener
from traincheck.sources.recording.recorder import Recorder

Begins = Callable[[nn.Module, Any], object]
Ends = Callable[[nn.Module, Any, Any], object]
FirstBegins = Callable[[nn.Module, Any, int], object]
FirstEnds = Callable[[nn.Module, Any, Any, int], object]


_current_graph_task_id = torch._C._current_graph_task_id

SOURCE = "modules"


MAX_SPANS = 20_000
"""Remembered spans of a thread."""


class Span(NamedTuple):
    """The differentiable operations from number `start` to before `end` belong to a call of a module."""

    start: int
    end: int
    module: weakref.ref[nn.Module]


class _Depth(threading.local):
    def __init__(self) -> None:
        self.stack = ModuleStack()
        self.starts: list[int] = []  # for each call in the stack
        self.spans: list[Span] = []
        self.noted = False  # whether this thread is registered as one that calls modules


class ModuleCalls(RecorderListener):
    """Calls listeners, which must not raise, before and after each module call, in the order in which they were added.

    The first listener is guarded here and follows the depth of calls. It receives the depth at each begin. At each end
    it receives the number of calls that end, including interrupted ones, see Note [Calls that never end]. It also
    listens while no events are taken. `passed` is called when the end of a reported call will not be reported.
    Listeners see a module that `torch.compile` wraps as if the program called it directly.
    """

    def __init__(self) -> None:
        self._others: list[tuple[Begins, bool]] = []  # each with whether it listens to outermost modules only
        self._ends: list[tuple[Ends, bool]] = []
        self._hooked = ExitStack()
        self._waits: Any = None  # handle of the waiting hook, while the others are off
        self._listening = False  # whether the waiting hook is active
        self._off = False
        self._depth = _Depth()
        self._next_number: Callable[[], int] | None = None

    def record_spans(self, next_number: Callable[[], int] | None) -> None:
        """Record the span of each call from now on. `next_number` returns the number of the next operation; None ends
        the recording."""
        self._next_number = next_number

    @property
    def spans(self) -> Sequence[Span]:
        """The spans of the latest calls in this thread."""
        return self._depth.spans

    @property
    def depth(self) -> int:
        """How many module calls this thread is in."""
        return len(self._depth.stack)

    def attach(
        self, undo: ExitStack, recorder: Recorder, begins: FirstBegins, ends: FirstEnds, passed: Callable[..., object]
    ) -> None:
        """Begin to call the first listener."""
        self._recorder = recorder
        self._profiler, self._meter, self._spent = recorder.profiler, recorder.meter, recorder.meter.counter(SOURCE)
        self._here, self._silent = recorder.hooks.thread, recorder.availability.disabled
        self._first_begins, self._first_ends, self._passed = begins, ends, passed
        self._outermost_begins = recorder.guarded(SOURCE, begins, always=True)
        self._others.clear()  # when sources attach again, they add their listeners again
        self._ends.clear()
        self._hook_both()
        recorder.add_listener(self)
        recorder.sampling_gate.add_suspendable(self)
        undo.callback(recorder.sampling_gate.remove_suspendable, self)
        undo.callback(self._unhook)

    def add_listener(self, begins: Begins | None = None, ends: Ends | None = None, *, outermost: bool = False) -> None:
        """Add a listener; with `outermost`, only for modules that are called outside any other."""
        if begins is not None:
            self._others.append((begins, outermost))
        if ends is not None:
            self._ends.append((ends, outermost))

    def _hook_both(self) -> None:
        add = self._recorder.hooks.add
        add(self._hooked, register_module_forward_pre_hook(self._before), self._before)
        add(self._hooked, register_module_forward_hook(self._after, always_call=True), self._after)

    def _before(self, module: nn.Module, args: Any) -> None:
        if (
            is_traced()
            or FLAGS.get(EXPORTS)
            or self._here.suspended
            or (ORIGINAL_MODULE in module._modules and is_compile_wrapper(module))
        ):
            return
        meter, profiler = self._meter, self._profiler
        paused = profiler.callback is not None and profiler.pause()
        began, outer = meter.clock(), meter.inside
        meter.inside = 0.0
        depth = 1
        try:
            try:  # a guard, inlined: it would be nine tenths of the cost of modules whose values are not read
                of_thread = self._depth
                if not of_thread.noted and _current_graph_task_id() < 0:  # no thread of an accelerator's backward
                    of_thread.noted = True
                    self._recorder.hooks.note_thread()
                depth = of_thread.stack.push(module)
                if self._next_number is not None:
                    of_thread.starts[depth - 1 :] = (self._next_number(),)
                if self._recorder.active and SOURCE not in self._silent:
                    self._first_begins(module, args, depth)
            except Exception as error:  # such as lack of memory
                self._recorder.fault(SOURCE, error)
            for begins, outermost in self._others:
                if depth == 1 or not outermost:
                    begins(module, args)
            if self._off:  # the step that this call begins is outside the sample
                self._let_pass()
        finally:
            took = meter.clock() - began
            own = took - meter.inside
            self._spent[0] += own
            meter.total += own
            meter.inside = outer + took
            if paused:
                profiler.resume()

    def _after(self, module: nn.Module, args: Any, output: Any) -> None:
        if (
            is_traced()
            or FLAGS.get(EXPORTS)
            or self._here.suspended
            or (ORIGINAL_MODULE in module._modules and is_compile_wrapper(module))
        ):
            return
        meter, profiler = self._meter, self._profiler
        paused = profiler.callback is not None and profiler.pause()
        began, outer = meter.clock(), meter.inside
        meter.inside = 0.0
        try:
            try:
                of_thread = self._depth
                ended = of_thread.stack.pop(module)
                if not ended:
                    return  # its begin was not reported
                starts = of_thread.starts
                if self._next_number is not None and len(starts) >= ended:
                    start, end = starts[-ended], self._next_number()
                    del starts[-ended:]
                    if end > start:
                        of_thread.spans.append(Span(start, end, weakref.ref(module)))
                        if len(of_thread.spans) > MAX_SPANS:
                            del of_thread.spans[: MAX_SPANS // 2]
                if self._recorder.active and SOURCE not in self._silent:
                    self._first_ends(module, args, output, ended)
            except Exception as error:
                self._recorder.fault(SOURCE, error)
            for ends, outermost in self._ends:
                if not (outermost and of_thread.stack.calls):
                    ends(module, args, output)
        finally:
            took = meter.clock() - began
            own = took - meter.inside
            self._spent[0] += own
            meter.total += own
            meter.inside = outer + took
            if paused:
                profiler.resume()

    def _nests(self, module: nn.Module) -> int:
        of_thread = self._depth
        try:
            depth = of_thread.stack.push(module)
            if self._next_number is not None:
                of_thread.starts[depth - 1 :] = (self._next_number(),)
            return depth
        except Exception as error:  # such as lack of memory
            self._recorder.fault(SOURCE, error)
            return 1

    # -- pauses of the recording -----------------------------------------------------------------------------------

    def suspend(self) -> None:
        """See `Suspendable`."""
        if self._off or in_a_call():
            return
        self._off = True
        self._unhook()
        self.forward_awaited()

    def can_resume(self) -> bool:
        """See `Suspendable`."""
        return not (self._off and in_a_call())

    def resume(self) -> None:
        """See `Suspendable`."""
        if self._off:
            self._off = False
            self._unhook()
            self._depth = _Depth()
            self._passed(everywhere=True)
            self._hook_both()

    def forward_awaited(self) -> None:
        """Wait for the next outermost module if its call can begin a step."""
        recorder = self._recorder
        if recorder.counted.left:  # no call is reported
            if self._listening and self._waits is not None:
                recorder.hooks.suspend_hook(self._waits)
                self._listening = False
            return
        if not self._off or self._listening or not recorder.active or not recorder.steps.awaits_forward:
            return
        hooks = recorder.hooks
        if self._waits is None:
            self._waits = hooks.add(self._hooked, register_module_forward_pre_hook(self._first), self._first)
        else:
            hooks.resume_hook(self._waits)
        self._listening = True

    def _first(self, module: nn.Module, args: Any) -> None:
        if (
            is_traced()
            or FLAGS.get(EXPORTS)
            or self._here.suspended
            or (ORIGINAL_MODULE in module._modules and is_compile_wrapper(module))
        ):
            return
        if in_a_call():
            return
        self._outermost_begins(module, args, 1)
        if self._off:
            self._passed(everywhere=False)
            if not self._recorder.steps.undecided and self._waits is not None:
                self._recorder.hooks.suspend_hook(self._waits)
                self._listening = False
        else:  # the step that this call begins is recorded, and earlier open calls are dropped
            self._nests(module)
            for begins, _ in self._others:
                begins(module, args)

    def _let_pass(self) -> None:
        self._depth.stack = ModuleStack()
        self._passed(everywhere=False)

    def _unhook(self) -> None:
        self._hooked.close()
        self._waits, self._listening = None, False


_CALL = nn.Module._call_impl.__code__
_BEFORE = frozenset((ModuleCalls._before.__code__, ModuleCalls._first.__code__))


def in_a_call() -> bool:
    """Whether this thread is inside a module call, other than a call whose begin is being reported."""
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
