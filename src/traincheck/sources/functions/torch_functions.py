"""Source `functions`: records public torch functions and tensor methods through a `TorchFunctionMode`."""

from __future__ import annotations

import functools
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import BuiltinFunctionType, FrameType, FunctionType, MethodDescriptorType, WrapperDescriptorType
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.compiler import is_compiling
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack, _pop_mode, _push_mode
from torch.utils._device import DeviceContext

import traincheck.sources
from traincheck.sources.base import replace_everywhere, wrapping
from traincheck.sources.compile.tracing import EXPORTS, FLAGS, is_traced
from traincheck.sources.modules import fast_paths
from traincheck.sources.modules.module_calls import ModuleCalls
from traincheck.sources.modules.variables import VariableCatalog
from traincheck.sources.recording.api_names import (
    GRADIENT,
    PACKED,
    RECURRENT,
    build_tables,
    function_name,
    listed_name,
    parameter_names,
    testing_overrides,
    torch_parameter_names,
)
from traincheck.sources.recording.context_facts import CallContext, call_context_facts, result_facts, with_fact
from traincheck.sources.recording.global_hooks import remove_mode
from traincheck.sources.recording.listener import RecorderListener
from traincheck.sources.recording.patches import UndoStack
from traincheck.sources.recording.recorder import OpenCall, Recorder
from traincheck.sources.recording.sampling_gate import SamplingGate
from traincheck.sources.tensors.call_summaries import CallRequest, CallSummaries, StateBeforeCall, call_request
from traincheck.vocab.bounded_cache import BoundedCache
from traincheck.vocab.builtin_rules import MODEL, OWN_WEIGHTS
from traincheck.vocab.call_kinds import BY_LIBRARY, FILLS
from traincheck.vocab.demand import NO_GRAD, Demand
from traincheck.vocab.events import FUNCTION
from traincheck.vocab.facts import Facts

if TYPE_CHECKING:
    from traincheck.sources.functions.aliased_averages import AliasedAverages
    from traincheck.sources.functions.no_grad_operations import NoGradOperations

TORCH_PREFIX = "torch."

INIT = "torch.nn.init"

CLEARING = tuple(f"torch.Tensor.{name}" for name in ("grad.__set__", "detach_", "requires_grad_", "zero_"))
"""Functions that an optimizer calls to clear its gradients, as far as TrainCheck names them."""

ENGINE = ("torch.autograd.graph", "_engine_run_backward")
"""The function behind `backward` and `grad`; modes do not see the call itself below it."""


class _FirstUpdate(RecorderListener):
    """Calls a function when an optimizer has updated parameters."""

    def __init__(self, function: Callable[[], None]) -> None:
        self._function = function

    def optimizer_stepped(self) -> None:
        self._function()


class TorchFunctionSource:
    """Observes torch functions called by the thread that attaches this source.

    Known limitations: TrainCheck does not observe other threads and the inside of compiled regions. Of nested functions
    it sees only the outermost, with two exceptions: functions of `torch.nn.init` that modes do not see are wrapped, and
    a backward is observed inside (recomputed forwards, hooks, custom functions).
    """

    name = "functions"

    def __init__(
        self, summaries: CallSummaries, call_context: CallContext, catalog: VariableCatalog, calls: ModuleCalls
    ) -> None:
        self._summaries = summaries
        self._calls = calls
        self._call_context = call_context
        self._catalog = catalog
        self._mode: _RecordingMode | None = None
        self._gate: SamplingGate | None = None
        self._first_update: _FirstUpdate | None = None
        build_tables()

    def offers(self) -> str | None:
        return None

    def attach(self, demand: Demand, recorder: Recorder) -> ExitStack:
        undo = UndoStack()
        records = demand.everything or any(_is_function(api) for api in demand.calls)
        describes = demand.takes_readings(NO_GRAD)
        if records or describes:
            self._wrap_init(demand, recorder, undo)
            if self._mode is None:
                self._mode = _RecordingMode(demand, recorder, self._summaries, self._call_context, self.name)
                self._mode.__enter__()
                recorder.hooks.mode = self._mode
            else:
                self._mode.set_demand(demand)  # it keeps its position in the stack of modes
            mode = self._mode
            self._suspend_between_samples(recorder.sampling_gate if records else None)
            self._describe(mode, recorder, undo, on=describes)
            mode.records = records
            self._find_aliased(mode, recorder, on=demand.takes_reading(MODEL, OWN_WEIGHTS))
            replace_everywhere(undo, *ENGINE, lambda function: _with_mode_on(mode, function), only_watched=True)
            fast_paths.preserve(undo, mode)
            recorder.on_detach(undo, self._leave)
        else:
            self._leave()
        return undo

    def _describe(self, mode: _RecordingMode, recorder: Recorder, undo: UndoStack, *, on: bool) -> None:
        """Describe what the program computes without gradients, see no_grad_operations.py."""
        if mode.operations is None and on:
            from traincheck.sources.functions.no_grad_operations import NoGradOperations  # seldom demanded

            mode.operations = NoGradOperations(self.name, recorder, self._catalog, mode)
            recorder.add_listener(mode.operations)
        if mode.operations is not None:
            mode.operations.windows.demand(on)
            recorder.after_gap(self.name, mode.operations.forget_reported, undo=undo, repeatable=True)
            recorder.at_end(recorder.guarded(self.name, mode.operations.report_completeness))
            if on:
                self._calls.add_listener(ends=mode.operations.module_ended, outermost=True)

    def _find_aliased(self, mode: _RecordingMode, recorder: Recorder, *, on: bool) -> None:
        """Look for updates of a copy that read from the copy itself, see aliased_averages.py."""
        if mode.averages is not None:
            mode.averages.is_on = mode.averages.is_on and on
        elif on and self._first_update is None:
            self._first_update = _FirstUpdate(recorder.guarded(self.name, self._begin_averages))
            self._recorder = recorder
            recorder.add_listener(self._first_update)

    def _begin_averages(self) -> None:
        from traincheck.sources.functions.aliased_averages import OBSERVED, AliasedAverages  # not before an update

        recorder, mode = self._recorder, self._mode
        if self._first_update is not None:
            recorder.remove_listener(self._first_update)
        if mode is not None and mode.averages is None:
            mode.averages, mode.averaging = AliasedAverages(self.name, recorder, self._catalog), OBSERVED
            recorder.add_listener(mode.averages)

    def _suspend_between_samples(self, gate: SamplingGate | None) -> None:
        """Let `gate` suspend the mode. With None it is only on the stack while something is described."""
        if gate is not self._gate and self._mode is not None:
            if self._gate is not None:
                self._gate.remove_suspendable(self._mode)
            if gate is not None:
                self._mode.resume()
                gate.add_suspendable(self._mode)
            self._gate = gate

    def _leave(self) -> None:
        self._suspend_between_samples(None)
        mode, self._mode = self._mode, None
        if mode is not None:
            _leave(mode)

    def _wrap_init(self, demand: Demand, recorder: Recorder, undo: UndoStack) -> None:
        """Wrap the initialisation functions that modes do not see."""
        seen_by_modes = testing_overrides()
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
    """Return the context of a call. For a call that fills memory it says whether a library made it."""
    context = call_context_facts(call_context)
    return with_fact(context, BY_LIBRARY, True) if fills and recorder.sites.is_library_calling() else context


def _is_function(api: str) -> bool:
    """Return whether a demanded name is a torch function (names of methods follow a capitalised class)."""
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
    """Remove the mode from the stack of this thread; modes of the program above it stay."""
    mode.off = True
    remove_mode(mode)  # in another thread it stays, switched off


def _with_mode_on(mode: _RecordingMode, backward: Any) -> Any:
    """Wrap `backward` so that the mode is on inside it.

    torch switches a mode off while it handles a function, including `Tensor.backward`. Work inside a backward is part
    of training and has to be observed.
    """

    @functools.wraps(backward)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if (
            is_compiling()
            or not mode.is_of_this_thread()
            or mode.is_off()
            or mode in _get_current_function_mode_stack()
        ):
            return backward(*args, **kwargs)
        with mode, mode.suspension_blocked():
            return backward(*args, **kwargs)

    return wrapper


_BACKWARD = torch.Tensor.backward.__code__


def _in_backward() -> bool:
    """Return whether this thread is in `Tensor.backward`, the only function handled by modes that runs other
    functions."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code is not _BACKWARD:
        frame = frame.f_back
    return frame is not None


class _ObservedFunction(NamedTuple):
    """A recorded function: its name, and the values recorded of its calls.

    `packed` applies to calls of a recurrent function with a packed sequence: their second argument is a tensor, and all
    arguments have other names. A `native` function calls no Python code. A function that `fills` memory with random
    numbers says in its context whether a library calls it.
    """

    levels: tuple[str, ...]
    request: CallRequest | None
    packed: CallRequest | None = None
    native: bool = False
    fills: bool = False


_NATIVE = (BuiltinFunctionType, MethodDescriptorType, WrapperDescriptorType)
_CALLS_BACK = frozenset(("torch.Tensor.apply_", "torch.Tensor.map_", "torch.Tensor.map2_"))

_SHOWN = (torch.Tensor, tuple, list)
"""Results of calls that a line may describe."""

_REPLACED = _ObservedFunction((), None)
"""Stands for a function that the program put in place of a torch function."""

_GRADIENT = _ObservedFunction((), None)
"""Stands for reading the attribute `grad`, the most frequent function of a step, if nobody demanded it."""

_TORCH_AND_OURS = tuple(str(Path(file).parent) + os.sep for file in (torch.__file__, traincheck.sources.__file__))
"""Folders with the code of torch functions, and of TrainCheck's replacements."""


def is_replacement(func: Any) -> bool:
    """Return whether the program put a function in place of a torch function."""
    return type(func) is FunctionType and not func.__code__.co_filename.startswith(_TORCH_AND_OURS)


def original_function(func: Any) -> Any:
    """Return the torch function that invoked the modes for `func`.

    Note [Patches are called once]: a torch function passes modes the function found under its name in its module. A
    program may have replaced that name by a function that calls the original. The mode would then call the replacement
    a second time. TrainCheck therefore calls the torch function that invoked the modes.
    """
    handler = sys._getframe(2)
    caller = handler.f_back
    if (
        handler.f_code is not _MODE_HANDLER
        or caller is None
        or caller.f_code is func.__code__
        or caller.f_code.co_freevars
    ):
        return func
    return FunctionType(caller.f_code, caller.f_globals)


_MODE_HANDLER = torch.overrides.handle_torch_function.__code__


class _RecordingMode(TorchFunctionMode):  # type: ignore[misc]  # torch is not typed here
    """Records each torch function as a call.

    The path of a call is short: functions that nobody demanded allocate nothing, and equal summaries are one object.
    """

    def __init__(
        self, demand: Demand, recorder: Recorder, summaries: CallSummaries, call_context: CallContext, name: str
    ) -> None:
        super().__init__()
        self.off = False
        self.records = True  # whether calls are recorded
        self.describes = False  # whether calls are described, see `operations`
        self._inside_described = False  # functions inside a described one are not
        self.operations: NoGradOperations | None = None
        self.averages: AliasedAverages | None = None
        self.averaging: Mapping[Any, str] = {}  # the functions that `averages` gets
        self._recorder = recorder
        self._silent = recorder.availability.disabled
        self._profiler = recorder.profiler
        self._updates = recorder.steps.updates
        self._summaries = summaries
        self._call_context = call_context
        self._name = name
        self._functions: BoundedCache[Any, _ObservedFunction | None] = BoundedCache()
        self._thread = threading.get_ident()
        self._backwards = 0  # backwards of tensors under way
        self._below: list[Any] | None = None  # modes below this one when it was suspended
        self._meter = recorder.meter
        self._spent = recorder.meter.counter(name)
        self.set_demand(demand)

    def set_demand(self, demand: Demand) -> None:
        """Record the calls that `demand` requests from now on."""
        self._demand = demand
        self.records_clearing = demand.records_call(CLEARING)
        self._functions.clear()

    def suspend(self) -> None:
        """See `Suspendable`. Does nothing under a mode of the program, and in a backward of a tensor."""
        if self._below is None and not self._backwards and self.is_of_this_thread():
            stack = _get_current_function_mode_stack()
            if stack and stack[-1] is self:
                self._below = stack[:-1]
                _pop_mode()

    def describe_from_now_on(self, on: bool) -> None:
        """See `DescribingMode`."""
        if on and self.can_resume():
            self.resume()
        elif not self.records:
            self.suspend()
        self.describes = on and not self.is_off() and self.is_of_this_thread()

    def is_of_this_thread(self) -> bool:
        """Return whether the mode belongs to the stack of this thread."""
        return threading.get_ident() == self._thread

    def is_off(self) -> bool:
        """Return whether the mode is suspended or switched off for good."""
        return self.off or self._below is not None

    @contextmanager
    def suspension_blocked(self) -> Iterator[None]:
        """Prevent suspension inside the block."""
        self._backwards += 1
        try:
            yield
        finally:
            self._backwards -= 1

    def can_resume(self) -> bool:
        """See `Suspendable`. False inside a function that the mode would have handled."""
        return self._below is None or (self.is_of_this_thread() and not _in_backward())

    def resume(self) -> None:
        """See `Suspendable`. Modes entered by the program since then stay above, as torch does for devices."""
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
        if observed is _REPLACED:
            return original_function(func)(*args, **(kwargs or {}))
        if func in self.averaging and not self._updates:
            return self._averaged(func, types, args, kwargs)
        if self.describes and not self._inside_described:
            return self._described(observed, func, types, args, kwargs)
        if observed is None or observed is _GRADIENT:
            return func(*args, **kwargs) if kwargs else func(*args)
        recorder = self._recorder
        if self._profiler.suppressed or not recorder.watching:
            return func(*args, **kwargs) if kwargs else func(*args)
        # Within an update, only functions inside modules of the closure are recorded; all others belong to the
        # optimizer. The same holds within project functions that exceed their limit of recorded calls.
        skip = (self._updates or self._profiler.unrecorded_calls) and not recorder.inside_module_call()
        if skip or self.off or not recorder.active or self._name in self._silent:
            return func(*args, **kwargs) if kwargs else func(*args)
        return self._recorded(observed, func, args, kwargs, quiet=observed.native and not types)

    def _averaged(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """Call a function that may update a copy of a model."""
        name, averaging, averages = self.averaging[func], self.averaging, self.averages
        self.averaging = {}
        if averages is None or not averages.is_on or self.off:
            return self.__torch_function__(func, types, args, kwargs)
        watching = self._recorder.watching
        if watching:
            averages.note_write(name, args, kwargs, sys._getframe(2))
        try:
            result = self.__torch_function__(func, types, args, kwargs)
        finally:
            self.averaging = averaging
        if watching:
            averages.note_result(name, args, kwargs, result)
        return result

    def _described(self, observed: _ObservedFunction | None, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """Call a function, record it if that is demanded, and describe it. Functions inside it are not described."""
        operations = self.operations
        if observed is _GRADIENT:
            result = func(*args)
            if result is None or operations is None or operations.is_named_gradient(result):
                return result
        else:
            self._inside_described = True
            try:
                if observed is None:
                    result = func(*args, **kwargs) if kwargs else func(*args)
                else:
                    result = self.__torch_function__(func, types, args, kwargs)
            finally:
                self._inside_described = False
        # Most calls read a plain attribute, such as a device, which no line shows.
        shows = result is None or (isinstance(result, _SHOWN) and type(result) is not torch.Size)
        if shows and self.describes and operations is not None:
            with torch._C.DisableTorchFunction():  # modes of the program do not see what TrainCheck reads
                in_graph = type(result) is torch.Tensor and result.requires_grad and torch.is_grad_enabled()
                if not in_graph:
                    caller = sys._getframe(2)
                    if caller.f_code is _RecordingMode._averaged.__code__:
                        caller = sys._getframe(4)
                    operations.describe(func, args, kwargs, result, caller)
        return result

    def _recorded(self, observed: _ObservedFunction, func: Any, args: Any, kwargs: Any, *, quiet: bool) -> Any:
        """Call a function and record the call. The profiler is paused meanwhile; `quiet` functions run no code of the
        project."""
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
        observed = _REPLACED if is_replacement(func) else None
        try:
            name = function_name(func) if observed is None else None
            if name is not None and self._demand.records_call((name,)):
                request = call_request(self._demand, (name,), torch_parameter_names(func, name))
                packed = request._replace(names=PACKED) if request is not None and name in RECURRENT else None
                native = isinstance(func, _NATIVE) and name not in _CALLS_BACK
                observed = _ObservedFunction((name,), request, packed, native, name in FILLS)
            elif observed is None and listed_name(func) == GRADIENT:
                observed = _GRADIENT
        except Exception as error:
            self._disable(error)
        return self._functions.put(func, observed)

    def _disable(self, error: Exception) -> None:
        self.off = True
        self._recorder.fault(self._name, error)
