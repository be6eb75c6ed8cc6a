"""Source `functions`: public torch functions and tensor methods, seen through a `TorchFunctionMode`."""

from __future__ import annotations

import functools
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import BuiltinFunctionType, FrameType, FunctionType, MethodDescriptorType, WrapperDescriptorType
from typing import Any, NamedTuple

import torch
from torch.compiler import is_compiling
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack, _pop_mode, _push_mode
from torch.utils._device import DeviceContext

import traincheck.sources
from traincheck.sources.base import replace_everywhere, wrapping
from traincheck.sources.compile.tracing import EXPORTS, FLAGS, is_traced
from traincheck.sources.modules import fast_paths
from traincheck.sources.recording.api_names import (
    PACKED,
    RECURRENT,
    function_name,
    parameter_names,
    torch_parameter_names,
)
from traincheck.sources.recording.context_facts import CallContext, call_context_facts, result_facts, with_fact
from traincheck.sources.recording.global_hooks import remove_mode
from traincheck.sources.recording.patches import UndoStack
from traincheck.sources.recording.recorder import OpenCall, Recorder
from traincheck.sources.tensors.call_summaries import CallRequest, CallSummaries, StateBeforeCall, call_request
from traincheck.vocab.bounded_cache import BoundedCache
from traincheck.vocab.call_kinds import BY_LIBRARY, FILLS
from traincheck.vocab.demand import Demand
from traincheck.vocab.events import FUNCTION
from traincheck.vocab.facts import Facts

TORCH_PREFIX = "torch."

INIT = "torch.nn.init"

CLEARING = tuple(f"torch.Tensor.{name}" for name in ("grad.__set__", "detach_", "requires_grad_", "zero_"))
"""What an optimizer calls to clear its gradients, so far as these functions have names that are told."""

ENGINE = ("torch.autograd.graph", "_engine_run_backward")
"""What `backward` and `grad` come down to; below it no mode is asked about the call itself any more."""


class TorchFunctionSource:
    """Observes torch functions called by the thread it is attached from.

    Known limitations: other threads and the inside of compiled regions are not seen; of a function that calls others
    only the outermost is (but for the functions of `torch.nn.init` that a mode does not see, which are wrapped, and for
    what a backward runs: recomputed forwards, hooks, functions of the program's own).
    """

    name = "functions"

    def __init__(self, summaries: CallSummaries, call_context: CallContext) -> None:
        self._summaries = summaries
        self._call_context = call_context
        self._mode: _RecordingMode | None = None
        # torch keeps these tables once they were asked for: they are to hold its own functions, not what replaces them.
        for table in ("get_ignored_functions", "get_testing_overrides", "get_overridable_functions"):
            getattr(torch.overrides, table)()

    def offers(self) -> str | None:
        return None

    def attach(self, demand: Demand, recorder: Recorder) -> ExitStack:
        undo = UndoStack()
        if demand.everything or any(_is_function(api) for api in demand.calls):
            self._wrap_init(demand, recorder, undo)
            if self._mode is None:
                self._mode = _RecordingMode(demand, recorder, self._summaries, self._call_context, self.name)
                self._mode.__enter__()
                recorder.hooks.mode = self._mode
                recorder.sampling_gate.costly.append(self._mode)
            else:
                self._mode.set_demand(demand)  # it keeps its place among those of the program
            mode = self._mode
            replace_everywhere(undo, *ENGINE, lambda function: _with_mode_on(mode, function))
            fast_paths.preserve(undo, mode)
            recorder.on_detach(undo, self._leave)
        else:
            self._leave()
        return undo

    def _leave(self) -> None:
        mode, self._mode = self._mode, None
        if mode is not None:
            _leave(mode)

    def _wrap_init(self, demand: Demand, recorder: Recorder, undo: UndoStack) -> None:
        """Wrap the functions that fill a tensor and that no mode is asked about."""
        seen_by_modes = torch.overrides.get_testing_overrides()
        for name, function in vars(torch.nn.init).items():
            levels = (f"{INIT}.{name}",)
            public = name.endswith("_") and not name.startswith("_") and callable(function)
            if public and function not in seen_by_modes and demand.records_call(levels):
                request = call_request(demand, levels, parameter_names(function))
                replace_everywhere(undo, INIT, name, self._wrap_init_function(recorder, levels, request))

    def _wrap_init_function(self, recorder: Recorder, levels: tuple[str, ...], request: CallRequest | None) -> Any:
        summaries, call_context, fills = self._summaries, self._call_context, levels[0] in FILLS

        def begins(*args: Any, **kwargs: Any) -> tuple[OpenCall, StateBeforeCall | None]:
            call = recorder.enter(FUNCTION, levels, "", _context(recorder, call_context, fills=fills))
            return call, summaries.record_arguments(call, request, args, kwargs) if request else None

        def ends(token: tuple[OpenCall, StateBeforeCall | None], result: Any) -> None:
            call, before = token
            recorder.leave(
                call, summaries.record_result(call, request, before, result) if request else result_facts(result)
            )

        def failed(token: tuple[OpenCall, StateBeforeCall | None]) -> None:
            recorder.abandon(token[0])

        guarded = recorder.guarded
        return wrapping(guarded(self.name, begins), guarded(self.name, ends), guarded(self.name, failed))


def _context(recorder: Recorder, call_context: CallContext, *, fills: bool) -> Facts:
    """The context of a call; of one that fills memory, also whether a library makes it."""
    context = call_context_facts(call_context)
    return with_fact(context, BY_LIBRARY, True) if fills and recorder.sites.is_library_calling() else context


def _is_function(api: str) -> bool:
    """Whether a demanded name is that of a torch function (classes have their method's name after a capital)."""
    return api.startswith(TORCH_PREFIX) and api.rsplit(".", 2)[-2] in (
        "torch",
        "functional",
        "Tensor",
        "init",
        "linalg",
        "fft",
        "special",
    )


def _leave(mode: _RecordingMode) -> None:
    """Take the mode off the stack of this thread; those of the program's that lie above it stay as they are."""
    mode.off = True
    remove_mode(mode)  # where it was entered in another thread, it stays there


def _with_mode_on(mode: _RecordingMode, backward: Any) -> Any:
    """`backward` with the mode on. A mode is off while it is asked about a function, as it is about `Tensor.backward`;
    but what runs in a backward is part of the training, and not of how a function is made."""

    @functools.wraps(backward)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if (
            is_compiling()
            or not mode.is_of_this_thread()
            or mode.is_off()
            or mode in _get_current_function_mode_stack()
        ):
            return backward(*args, **kwargs)
        with mode, mode.kept_on():
            return backward(*args, **kwargs)

    return wrapper


_BACKWARD = torch.Tensor.backward.__code__


def _in_backward() -> bool:
    """Whether this thread is in `Tensor.backward`: of functions that modes are asked about, the one that runs
    others."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code is not _BACKWARD:
        frame = frame.f_back
    return frame is not None


class _ObservedFunction(NamedTuple):
    """A function that is recorded: its name, and what is told of its calls.

    `packed` is asked of the calls of a recurrent function that are given a packed sequence: there the second argument
    is a tensor, and all of them have other names. A `native` one calls nothing that is written in Python. The
    context of one that `fills` memory with random numbers says whether a library calls it.
    """

    levels: tuple[str, ...]
    request: CallRequest | None
    packed: CallRequest | None = None
    native: bool = False
    fills: bool = False


_NATIVE = (BuiltinFunctionType, MethodDescriptorType, WrapperDescriptorType)
_CALLS_BACK = frozenset(("torch.Tensor.apply_", "torch.Tensor.map_", "torch.Tensor.map2_"))

_REPLACED = _ObservedFunction((), None)
"""Stands for a function of the program's in the place of one of torch's."""

_TORCH_AND_OURS = tuple(str(Path(file).parent) + os.sep for file in (torch.__file__, traincheck.sources.__file__))
"""Where the code of torch's functions lies, and of what we replace them by."""


def _is_replacement(func: Any) -> bool:
    return type(func) is FunctionType and not func.__code__.co_filename.startswith(_TORCH_AND_OURS)


def _original(func: Any) -> Any:
    """The function that asks for `func`.

    Note [Patches are called once]: a function of torch asks modes by the name that it has in its module. Where the
    program has put one of its own there, which calls torch's, that one would be called again by the one it has called,
    only because there is a mode. So what is called is the function of torch that asks.
    """
    handler = sys._getframe(2)
    caller = handler.f_back
    if handler.f_code is not _ASKS or caller is None or caller.f_code is func.__code__ or caller.f_code.co_freevars:
        return func
    return FunctionType(caller.f_code, caller.f_globals)


_ASKS = torch.overrides.handle_torch_function.__code__


class _RecordingMode(TorchFunctionMode):  # type: ignore[misc]  # torch is not typed here
    """Records each torch function as a call.

    The path of a call is kept short: nothing is built for functions that nobody demanded, and equal summaries are one
    object.
    """

    def __init__(
        self, demand: Demand, recorder: Recorder, summaries: CallSummaries, call_context: CallContext, name: str
    ) -> None:
        super().__init__()
        self.off = False
        self._recorder = recorder
        self._silent = recorder.availability.disabled
        self._profiler = recorder.profiler
        self._updates = recorder.steps.updates
        self._summaries = summaries
        self._call_context = call_context
        self._name = name
        self._functions: BoundedCache[Any, _ObservedFunction | None] = BoundedCache()
        self._thread = threading.get_ident()
        self._backwards = 0  # under way, of tensors
        self._below: list[Any] | None = None  # the modes that were below this one where it was taken off
        self._meter = recorder.meter
        self._spent = recorder.meter.of(name)
        self.set_demand(demand)

    def set_demand(self, demand: Demand) -> None:
        """From now on record the calls that `demand` asks for."""
        self._demand = demand
        self.records_clearing = demand.records_call(CLEARING)
        self._functions.clear()

    def suspend(self) -> None:
        """See `Suspendable`. It stays where a mode of the program's own lies above it, and in a backward of a tensor."""
        if self._below is None and not self._backwards and self.is_of_this_thread():
            stack = _get_current_function_mode_stack()
            if stack and stack[-1] is self:
                self._below = stack[:-1]
                _pop_mode()

    def is_of_this_thread(self) -> bool:
        """Whether it is on the stack of modes of this thread, when it is on."""
        return threading.get_ident() == self._thread

    def is_off(self) -> bool:
        """Whether it is taken off, for now or for good."""
        return self.off or self._below is not None

    @contextmanager
    def kept_on(self) -> Iterator[None]:
        """Do not take it off."""
        self._backwards += 1
        try:
            yield
        finally:
            self._backwards -= 1

    def can_resume(self) -> bool:
        """See `Suspendable`. Not in the midst of a function that it would have been asked about."""
        return self._below is None or (self.is_of_this_thread() and not _in_backward())

    def resume(self) -> None:
        """See `Suspendable`. Modes that the program has entered since stay above, as torch itself does it for devices."""
        below, self._below = self._below, None
        if below is not None and not self.off:
            above = []
            stack = _get_current_function_mode_stack()
            while stack and not isinstance(stack[-1], DeviceContext) and all(stack[-1] is not mode for mode in below):
                above.append(_pop_mode())
                stack.pop()
            for mode in (self, *reversed(above)):
                _push_mode(mode)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if is_traced() or FLAGS.get(EXPORTS):
            return func(*args, **kwargs) if kwargs else func(*args)
        try:
            observed = self._functions[func]
        except KeyError:
            observed = self._learn(func)
        if observed is None:
            return func(*args, **kwargs) if kwargs else func(*args)
        if observed is _REPLACED:
            return _original(func)(*args, **(kwargs or {}))
        recorder = self._recorder
        if self._profiler.suppressed or not recorder.watching:
            return func(*args, **kwargs) if kwargs else func(*args)
        # Of an update only what the closure's modules compute is recorded; the rest is the optimizer's own affair. So
        # it is with a helper of the project that was told of often enough.
        aside = (self._updates or self._profiler.helpers) and not recorder.inside_module_call()
        if aside or self.off or not recorder.active or self._name in self._silent:
            return func(*args, **kwargs) if kwargs else func(*args)
        return self._recorded(observed, func, args, kwargs, quiet=observed.native and not types)

    def _recorded(self, observed: _ObservedFunction, func: Any, args: Any, kwargs: Any, *, quiet: bool) -> Any:
        """Call a function and tell of it. The profiler rests meanwhile, also in a `quiet` one: nothing of the project's
        runs inside."""
        recorder, profiler = self._recorder, self._profiler
        paused = profiler.callback is not None and profiler.pause()
        try:
            call, before = self._begins(observed, args, kwargs)
            if paused and not quiet:
                profiler.resume()
                paused = False
            if call is None:
                return func(*args, **kwargs) if kwargs else func(*args)
            try:
                result = func(*args, **kwargs) if kwargs else func(*args)
            except BaseException:
                recorder.abandon(call)
                raise
            if recorder.watching:
                paused = paused or (profiler.callback is not None and profiler.pause())
                self._ends(observed, call, before, result)
            return result
        finally:
            if paused:
                profiler.resume()

    def _begins(
        self, observed: _ObservedFunction, args: Any, kwargs: Any
    ) -> tuple[OpenCall | None, StateBeforeCall | None]:
        recorder = self._recorder
        call = before = None
        meter = self._meter
        began, outer = meter.clock(), meter.inside
        meter.inside = 0.0
        try:
            levels, request, packed, _, fills = observed
            site = recorder.sites.here()
            if site == recorder.fetch_site:
                return None, None
            if packed is not None and len(args) > 1 and isinstance(args[1], torch.Tensor):
                request = packed
            call = recorder.enter(FUNCTION, levels, "", _context(recorder, self._call_context, fills=fills), site=site)
            if request is not None:
                before = self._summaries.record_arguments(call, request, args, kwargs)
        except Exception as error:
            self._disable(error)
        finally:
            took = meter.clock() - began
            own = took - meter.inside
            self._spent[0] += own
            meter.total += own
            meter.inside = outer + took
        return call, before

    def _ends(self, observed: _ObservedFunction, call: OpenCall, before: StateBeforeCall | None, result: Any) -> None:
        meter = self._meter
        began, outer = meter.clock(), meter.inside
        meter.inside = 0.0
        try:
            request = observed.request
            outcome = (
                result_facts(result)
                if request is None
                else self._summaries.record_result(call, request, before, result)
            )
            self._recorder.leave(call, outcome)
        except Exception as error:
            self._disable(error)
        finally:
            took = meter.clock() - began
            own = took - meter.inside
            self._spent[0] += own
            meter.total += own
            meter.inside = outer + took

    def _learn(self, func: Any) -> _ObservedFunction | None:
        observed = _REPLACED if _is_replacement(func) else None
        try:
            name = function_name(func) if observed is None else None
            if name is not None and self._demand.records_call((name,)):
                request = call_request(self._demand, (name,), torch_parameter_names(func, name))
                packed = request._replace(names=PACKED) if request is not None and name in RECURRENT else None
                native = isinstance(func, _NATIVE) and name not in _CALLS_BACK
                observed = _ObservedFunction((name,), request, packed, native, name in FILLS)
        except Exception as error:
            self._disable(error)
        return self._functions.put(func, observed)

    def _disable(self, error: Exception) -> None:
        self.off = True
        self._recorder.fault(self._name, error)
