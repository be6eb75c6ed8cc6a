"""Source `project`: functions of the user's own code.

On Python 3.12 and later `sys.monitoring` reports them at no cost to other code; before that `sys.setprofile` does,
for the thread it is attached from.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections import Counter
from contextlib import ExitStack
from types import CodeType, FrameType
from typing import Any, NamedTuple

from torch import nn

from traincheck.sources.gradients.custom_clipping import CLIP, CustomClipping
from traincheck.sources.gradients.custom_clipping import OpenCustomClipping as Clipping
from traincheck.sources.recording.api_names import main_name
from traincheck.sources.recording.call_sites import MAX_CODE_OBJECTS, CallSites, qualified_name
from traincheck.sources.recording.context_facts import CallContext, call_context_facts, result_facts
from traincheck.sources.recording.frames import argument_names, local_values, return_offsets, variadic_names
from traincheck.sources.recording.recorder import OpenCall, Recorder
from traincheck.sources.recording.thread_profiler import ProfilerSuspension
from traincheck.sources.tensors.call_summaries import CallRequest, CallSummaries, StateBeforeCall, call_request
from traincheck.vocab.bounded_cache import ObjectCache
from traincheck.vocab.call_kinds import LAYERED, is_layer_count, kinds_of_function
from traincheck.vocab.demand import NUMBERS, Demand
from traincheck.vocab.events import PROJECT
from traincheck.vocab.facts import facts

_HIDDEN = ("<module>", "<listcomp>", "<genexpr>", "<dictcomp>", "<setcomp>", "<lambda>")
_UNKNOWN: Any = object()
"""Stands for code that was not seen before."""

MOST_CALLS = 500
"""Calls of one function that are told of a window. What is called more often is a helper (of a tokenizer, a data set):
its further calls, and the functions of torch in them, say nothing new."""

_GENERATOR = 0x20 | 0x80 | 0x200
"""Code flags of generators and coroutines: they are entered many times, and are no calls."""


class _ObservedFunction(NamedTuple):
    """A function that is observed: its name, what is told of its calls, the places where it returns.

    `receiver` is the name of the module under construction, for a constructor that is given a number of layers, and
    `limit` that of the argument which bounds the norm of gradients, or has the bound, for a function that clips.
    """

    levels: tuple[str, ...]
    request: CallRequest | None
    arguments: tuple[str, ...]
    returns: frozenset[int]
    receiver: str = ""
    limit: str = ""


class _OpenFunction(NamedTuple):
    """A call under way. `of` is its frame, or its code where frames are not told; `built` the module that it makes.

    `call` is None for a call that is not told of any more, see `MOST_CALLS`.
    """

    frame_or_code: FrameType | CodeType
    call: OpenCall | None
    function: _ObservedFunction
    before: StateBeforeCall | None
    built: weakref.ref[Any] | None = None
    clipping: Clipping | None = None


class _Stack(threading.local):
    def __init__(self) -> None:
        self.opened: list[_OpenFunction] = []


class ProjectFunctionSource:
    """Observes calls of functions whose file belongs to the project (see `CallSites`) or to a named package."""

    name = "project"

    def __init__(
        self, sites: CallSites, summaries: CallSummaries, call_context: CallContext, clipping: CustomClipping
    ) -> None:
        self._sites = sites
        self._summaries = summaries
        self._call_context = call_context
        self._clipping = clipping
        self._functions: ObjectCache[_ObservedFunction | None] = ObjectCache(MAX_CODE_OBJECTS)
        self._stack = _Stack()  # on Python 3.12 and later
        self._opened: list[_OpenFunction] = []  # before
        self._window = -1
        self._call_counts: Counter[tuple[str, ...]] = Counter()  # in that window, by the levels of the function

    def offers(self) -> str | None:
        if sys.version_info < (3, 12) and sys.getprofile() is not None:
            return "another profiler is active (sys.setprofile)"
        return None

    def attach(self, demand: Demand, recorder: Recorder) -> ExitStack:
        self._demand = demand
        self._recorder = recorder
        self._clips = demand.reads_values((CLIP,), NUMBERS)
        self._functions.clear()
        undo = ExitStack()
        cheap = sys.version_info >= (3, 12)
        if not any((demand.everything, self._clips and cheap, *map(_may_be_project, demand.calls))):
            self._drop_open_calls(self._opened if sys.version_info < (3, 12) else self._stack.opened)
            return undo
        if sys.version_info >= (3, 12):
            self._monitor(undo)
        else:
            self._profile(undo)
        return undo

    def _drop_open_calls(self, opened: list[_OpenFunction]) -> None:
        """Nobody will see the end of these calls."""
        for opened_call in reversed(opened):
            if opened_call.call is None:
                self._recorder.profiler.unrecorded_calls -= 1
            else:
                self._recorder.drop_call(opened_call.call)
        opened.clear()

    def _learn(self, code: CodeType, module: str) -> _ObservedFunction | None:
        """What is known of a project function, None for code that is not observed."""
        if not self._sites.file_of(code) or code.co_name in _HIDDEN or code.co_flags & _GENERATOR:
            self._functions.put_for(code, None)  # nearly all code is somebody else's
            return None
        names = (*argument_names(code), *variadic_names(code))
        receiver = code.co_varnames[0] if _builds_layers(code) else ""
        kinds = (LAYERED,) if receiver else kinds_of_function(code.co_name, argument_names(code))
        levels = self._levels_of(code, module, kinds)
        function = None
        if levels is not None:
            request = call_request(self._demand, (*levels, *kinds), ())
            limit = self._clipping.limit_of(code) if self._clips and not receiver else ""
            function = _ObservedFunction(levels, request, names, return_offsets(code), receiver, limit)
        return self._functions.put_for(code, function)

    def _levels_of(self, code: CodeType, module: str, kinds: tuple[str, ...]) -> tuple[str, ...] | None:
        """The levels of a project function, None for code that is not observed."""
        name = qualified_name(code)
        if "<locals>" in name or name.endswith(".forward"):
            return None  # a module's forward is observed as such
        if name.endswith(".__init__") and LAYERED not in kinds:
            return None
        levels = (f"{main_name() if module == '__main__' else module}.{name}",)
        is_demanded = self._demand.records_call((*levels, *kinds))
        is_demanded = is_demanded or (self._clips and bool(self._clipping.limit_of(code)))
        return levels if is_demanded else None

    def _begins(self, function: _ObservedFunction, of: FrameType | CodeType, frame: FrameType) -> _OpenFunction | None:
        if self._recorder.queries_program:
            return None
        if self._exceeds_limit(function):
            self._recorder.profiler.unrecorded_calls += 1
            return _OpenFunction(of, None, function, None)
        built = None
        if function.receiver:
            module = local_values(frame, (function.receiver,)).get(function.receiver)
            # The constructor of a base class leaves a module that is not whole yet.
            if not isinstance(module, nn.Module) or _constructor(type(module)) is not frame.f_code:
                return None
            built = weakref.ref(module)
        call = self._recorder.enter(PROJECT, function.levels, "", call_context_facts(self._call_context))
        before = clipping = None
        arguments = local_values(frame, function.arguments) if function.request is not None or function.limit else {}
        if function.request is not None:
            before = self._summaries.record_arguments(call, function.request, (), arguments)
        if function.limit:
            clipping = self._clipping.begins(local_values(frame, (function.limit,)).get(function.limit), arguments)
        return _OpenFunction(of, call, function, before, built, clipping)

    def _exceeds_limit(self, function: _ObservedFunction) -> bool:
        """Whether the window that is open has enough calls of this function; this one is counted."""
        if self._window != self._recorder.window:
            self._window = self._recorder.window
            self._call_counts.clear()
        self._call_counts[function.levels] += 1
        return self._call_counts[function.levels] > MOST_CALLS

    def _ends(self, opened: _OpenFunction, result: Any) -> None:
        call, request = opened.call, opened.function.request
        if call is None:
            self._recorder.profiler.unrecorded_calls -= 1
            return
        if not self._recorder.watching:
            return
        if opened.clipping is not None:
            self._clipping.ends(opened.clipping, result, self._recorder)
        module = opened.built() if opened.built is not None else None
        if module is not None:
            self._recorder.leave(call, facts(layers=class_counts(module)))
        elif request is None:
            self._recorder.leave(call, result_facts(result))
        else:
            self._recorder.leave(call, self._summaries.record_result(call, request, opened.before, result))

    def _fails(self, opened: _OpenFunction) -> None:
        if opened.call is None:
            self._recorder.profiler.unrecorded_calls -= 1
        else:
            self._recorder.abandon(opened.call)

    # -- before Python 3.12 ----------------------------------------------------------------------------------------

    def _profile(self, undo: ExitStack) -> None:
        recorder, functions = self._recorder, self._functions
        opened = self._opened
        guarded = recorder.guarded
        begins, learn = guarded(self.name, self._begins), guarded(self.name, self._learn)
        ends, fails = (guarded(self.name, f, always=True) for f in (self._ends, self._fails))

        def profile(frame: FrameType, event: str, arg: Any) -> None:
            # Python calls this for everything that the thread does, C functions included: the common case goes first.
            if event == "call":
                code = frame.f_code
                function = functions.get(id(code), _UNKNOWN)
                if function is _UNKNOWN:
                    if not recorder.active:
                        return  # the interpreter may be shutting down, with half of its modules gone
                    function = learn(code, frame.f_globals.get("__name__", ""))
                if function is not None:
                    call = begins(function, frame, frame)
                    if call is not None:
                        opened.append(call)
            elif event == "return" and opened and opened[-1].frame_or_code is frame:
                call = opened.pop()
                # A function that raises is told to return None, too.
                if arg is not None or frame.f_lasti in call.function.returns:
                    ends(call, arg)
                else:
                    fails(call)

        sys.setprofile(profile)
        recorder.profiler.callback = profile
        recorder.sampling_gate.costly.append(ProfilerSuspension(recorder.profiler, opened))

        def stop() -> None:
            recorder.profiler.callback = None
            if sys.getprofile() is profile:  # a profiler that came after us is not ours to remove
                sys.setprofile(None)

        def switch(off: bool) -> None:
            self._drop_open_calls(opened)
            if off:
                stop()
            elif sys.getprofile() is None:
                sys.setprofile(profile)
                recorder.profiler.callback = profile

        recorder.switches[self.name] = switch
        undo.callback(stop)

    # -- Python 3.12 and later -------------------------------------------------------------------------------------

    def _monitor(self, undo: ExitStack) -> None:
        monitoring = sys.monitoring  # type: ignore[attr-defined]
        tool = next((tool for tool in (4, 3) if monitoring.get_tool(tool) is None), None)
        if tool is None:
            return
        events = monitoring.events
        recorder, functions = self._recorder, self._functions
        stack = self._stack
        guarded = recorder.guarded
        begins, learn = guarded(self.name, self._begins), guarded(self.name, self._learn)
        ends, fails = (guarded(self.name, f, always=True) for f in (self._ends, self._fails))

        def started(code: CodeType, offset: int) -> Any:
            if recorder.hooks.thread.suspended:
                return None  # the compiler runs code of its own making under the names of the project's
            function = functions.get(id(code), _UNKNOWN)
            frame = sys._getframe(1)
            if function is _UNKNOWN:
                if not recorder.active:
                    return None
                function = learn(code, frame.f_globals.get("__name__", ""))
            if function is None:
                return monitoring.DISABLE
            call = begins(function, code, frame)
            if call is not None:
                stack.opened.append(call)
            return None

        def returned(code: CodeType, offset: int, value: Any) -> Any:
            if functions.get(id(code), _UNKNOWN) is None:  # what was known may have been let go, see `Kept`
                return monitoring.DISABLE
            if not recorder.hooks.thread.suspended and stack.opened and stack.opened[-1].frame_or_code is code:
                ends(stack.opened.pop(), value)
            return None

        def unwound(code: CodeType, offset: int, error: BaseException) -> None:
            if not recorder.hooks.thread.suspended and stack.opened and stack.opened[-1].frame_or_code is code:
                fails(stack.opened.pop())

        monitoring.use_tool_id(tool, "traincheck")
        monitoring.register_callback(tool, events.PY_START, started)
        monitoring.register_callback(tool, events.PY_RETURN, returned)
        monitoring.register_callback(tool, events.PY_UNWIND, unwound)
        all_events = events.PY_START | events.PY_RETURN | events.PY_UNWIND
        monitoring.set_events(tool, all_events)
        monitoring.restart_events()  # code that was of no interest to another demand

        def switch(off: bool) -> None:
            self._drop_open_calls(stack.opened)
            monitoring.set_events(tool, 0 if off else all_events)

        recorder.switches[self.name] = switch

        def stop() -> None:
            monitoring.set_events(tool, 0)
            monitoring.free_tool_id(tool)

        undo.callback(stop)


def _builds_layers(code: CodeType) -> bool:
    """Whether this is the constructor of a class, and is given a number of layers."""
    return code.co_name == "__init__" and code.co_argcount > 1 and any(map(is_layer_count, argument_names(code)))


def _constructor(cls: type[nn.Module]) -> Any:
    return getattr(cls.__init__, "__code__", None)


def class_counts(module: nn.Module) -> str:
    """How many modules of each class there are in `module`, and how many layers a recurrent one has, joined by +."""
    inside = [inner for inner in module.modules() if inner is not module]
    counts = set(Counter(map(type, inside)).values())
    counts.update(inner.num_layers for inner in inside if isinstance(inner, nn.RNNBase))
    return "+".join(map(str, sorted(counts)))


def _may_be_project(api: str) -> bool:
    """Whether a demanded name can be a project function's (a module's forward is observed as such, see `_told`)."""
    return not api.startswith("torch.") and not api.endswith(".forward")
