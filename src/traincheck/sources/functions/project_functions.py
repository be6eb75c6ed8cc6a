"""Source `project`: records calls of functions in the user's own code.

On Python 3.12 and later `sys.monitoring` reports them at no cost to other code. Before that, `sys.setprofile` reports
them for the thread that attaches the source. It makes each call of Python slower, so it is not used for what libraries
define, and constructors alone are observed until the first update, because models are built before.
"""

from __future__ import annotations

import functools
import importlib.util
import sys
import threading
import weakref
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import nn

from traincheck.sources.gradients.custom_clipping import CLIP, CustomClipping
from traincheck.sources.gradients.custom_clipping import OpenCustomClipping as Clipping
from traincheck.sources.recording.api_names import main_name
from traincheck.sources.recording.call_sites import MAX_CODE_OBJECTS, CallSites, qualified_name
from traincheck.sources.recording.context_facts import CallContext, call_context_facts, result_facts
from traincheck.sources.recording.frames import argument_names, local_values, return_offsets, variadic_names
from traincheck.sources.recording.listener import RecorderListener
from traincheck.sources.recording.recorder import OpenCall, Recorder
from traincheck.sources.recording.thread_profiler import EXECUTES_MODULE, LibraryImports, ProfilerSuspension
from traincheck.sources.tensors.call_summaries import CallRequest, CallSummaries, StateBeforeCall, call_request
from traincheck.vocab.bounded_cache import ObjectCache
from traincheck.vocab.call_kinds import LAYERED, is_layer_count, kinds_of_function
from traincheck.vocab.demand import FORM, NUMBERS, VALUES, Demand
from traincheck.vocab.events import PROJECT
from traincheck.vocab.facts import facts

if TYPE_CHECKING:
    from traincheck.sources.functions.value_forms import Held, ValueForms

_HIDDEN = ("<module>", "<listcomp>", "<genexpr>", "<dictcomp>", "<setcomp>", "<lambda>")
_UNKNOWN: Any = object()
"""Stands for code that was not seen before."""

MAX_CALLS = 500
"""Calls of one function recorded per window. A function called more often is a helper (of a tokenizer, a data set): its
further calls, and the torch functions in them, add no information."""

_GENERATOR = 0x20 | 0x80 | 0x200
"""Code flags of generators and coroutines: each resumption enters them again, so an entry is no call."""


class _ObservedFunction(NamedTuple):
    """An observed function: its name, the values recorded of its calls, the offsets where it returns.

    `receiver` is the name of the module under construction, for a constructor with a layer count. `limit` is the
    argument that bounds a gradient norm, or the object that holds the bound.
    """

    levels: tuple[str, ...]
    request: CallRequest | None
    arguments: tuple[str, ...]
    returns: frozenset[int]
    receiver: str = ""
    limit: str = ""


class _OpenFunction(NamedTuple):
    """A call under way. `frame_or_code` identifies it: code where frames are not reported. `built` is the module that
    it builds, and `described` are the arguments if its values are described.

    `call` is None beyond `MAX_CALLS`.
    """

    frame_or_code: FrameType | CodeType
    call: OpenCall | None
    function: _ObservedFunction
    before: StateBeforeCall | None
    built: weakref.ref[Any] | None = None
    clipping: Clipping | None = None
    described: Held | None = None


class _Stack(threading.local):
    def __init__(self) -> None:
        self.opened: list[_OpenFunction] = []


class ProjectFunctionSource(RecorderListener):
    """Observes calls of functions whose file belongs to the project (see `CallSites`) or to a named package."""

    name = "project"

    def __init__(
        self,
        sites: CallSites,
        summaries: CallSummaries,
        call_context: CallContext,
        clipping: CustomClipping,
        make_forms: Callable[[Recorder], ValueForms],
    ) -> None:
        self._sites = sites
        self._summaries = summaries
        self._call_context = call_context
        self._clipping = clipping
        self._make_forms = make_forms
        self._forms: ValueForms | None = None
        self._functions: ObjectCache[_ObservedFunction | None] = ObjectCache(MAX_CODE_OBJECTS)
        self._stack = _Stack()  # on Python 3.12 and later
        self._opened: list[_OpenFunction] = []  # before
        self._window = -1
        self._call_counts: Counter[tuple[str, ...]] = Counter()  # in that window, by levels

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
        self._describes = demand.takes_reading(VALUES, FORM)
        if self._describes:
            self._forms = self._forms or self._make_forms(recorder)
            self._forms.attach(undo)
        cheap = sys.version_info >= (3, 12)
        wanted = {api for api in demand.calls if _may_be_project(api, self._sites)}
        at_first = not cheap and not demand.everything and wanted == {LAYERED}
        if at_first and recorder.steps.updates_made:
            wanted = set()
        if not any((demand.everything, self._clips and cheap, wanted)):
            self._drop_open_calls(self._opened if sys.version_info < (3, 12) else self._stack.opened)
            return undo
        if sys.version_info >= (3, 12):
            self._monitor(undo)
        else:
            self._profile(undo)
        if at_first:
            until_update = _FirstUpdate(recorder, lambda: self._switch(True))
            recorder.add_listener(until_update)
            undo.callback(recorder.remove_listener, until_update)
        return undo

    def _drop_open_calls(self, opened: list[_OpenFunction]) -> None:
        """Drop calls whose end will not be observed."""
        for opened_call in reversed(opened):
            if opened_call.call is None:
                self._recorder.profiler.unrecorded_calls -= 1
            else:
                self._recorder.drop_call(opened_call.call)
        opened.clear()

    def _learn(self, code: CodeType, module: str) -> _ObservedFunction | None:
        """Return how to observe a project function, None for code that is not observed."""
        if not self._sites.is_observed(code, module) or code.co_name in _HIDDEN or code.co_flags & _GENERATOR:
            self._functions.put_for(code, None)  # nearly all code is outside the project
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
        """Return the levels of a project function, None for code that is not observed."""
        name = qualified_name(code)
        if "<locals>" in name or _is_method(code, "forward"):
            return None  # the source `modules` observes forwards
        if _is_method(code, "__init__") and LAYERED not in kinds:
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
            # After the constructor of a base class, the module is not complete.
            if not isinstance(module, nn.Module) or _constructor(type(module)) is not frame.f_code:
                return None
            built = weakref.ref(module)
        call = self._recorder.enter(PROJECT, function.levels, "", call_context_facts(self._call_context))
        before = clipping = None
        forms = self._forms if self._describes and not function.receiver else None
        if forms is not None and not forms.should_read(function.levels[0]):
            forms = None
        arguments: dict[str, Any] = {}
        if function.request is not None or function.limit or forms is not None:
            arguments = local_values(frame, function.arguments)
        if function.request is not None:
            before = self._summaries.record_arguments(call, function.request, (), arguments)
        if function.limit:
            clipping = self._clipping.begins(local_values(frame, (function.limit,)).get(function.limit), arguments)
        described = None if forms is None else forms.hold(arguments)
        return _OpenFunction(of, call, function, before, built, clipping, described)

    def _exceeds_limit(self, function: _ObservedFunction) -> bool:
        """Count a call; return whether the current window has more than `MAX_CALLS` of this function."""
        if self._window != self._recorder.window_index:
            self._window = self._recorder.window_index
            self._call_counts.clear()
        self._call_counts[function.levels] += 1
        return self._call_counts[function.levels] > MAX_CALLS

    def _ends(self, opened: _OpenFunction, result: Any) -> None:
        call, request = opened.call, opened.function.request
        if call is None:
            self._recorder.profiler.unrecorded_calls -= 1
            return
        if not self._recorder.watching:
            return
        if opened.clipping is not None:
            self._clipping.ends(opened.clipping, result, self._recorder)
        if opened.described is not None and self._forms is not None:
            self._forms.read(call.seq, opened.function.levels[0], opened.described, result)
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

    def source_switched(self, source: str, *, off: bool) -> None:
        if source == self.name:
            self._switch(off)

    # -- before Python 3.12 ----------------------------------------------------------------------------------------

    def _profile(self, undo: ExitStack) -> None:
        recorder, functions = self._recorder, self._functions
        opened = self._opened
        guarded = recorder.guarded
        begins, learn = guarded(self.name, self._begins), guarded(self.name, self._learn)
        ends, fails = (guarded(self.name, f, always=True) for f in (self._ends, self._fails))
        failed = functools.partial(recorder.fault, self.name)
        import_begins = LibraryImports(recorder.profiler, self._sites.is_observed_file, failed).begins

        def profile(frame: FrameType, event: str, arg: Any) -> None:
            # Python calls this for every function of the thread, including C functions: test the common case first.
            if event == "call":
                code = frame.f_code
                function = functions.get(id(code), _UNKNOWN)
                if function is _UNKNOWN:
                    if not recorder.active:
                        return  # the interpreter may be shutting down
                    function = learn(code, frame.f_globals.get("__name__", ""))
                if function is not None:
                    call = begins(function, frame, frame)
                    if call is not None:
                        opened.append(call)
                elif code is EXECUTES_MODULE:
                    import_begins(frame)
            elif event == "return" and opened and opened[-1].frame_or_code is frame:
                call = opened.pop()
                # Python reports a return of None for a function that raises, too.
                if arg is not None or frame.f_lasti in call.function.returns:
                    ends(call, arg)
                else:
                    fails(call)

        sys.setprofile(profile)
        recorder.profiler.callback = profile
        suspension = ProfilerSuspension(recorder.profiler, opened)
        recorder.sampling_gate.add_suspendable(suspension)
        undo.callback(recorder.sampling_gate.remove_suspendable, suspension)
        undo.callback(suspension.end)

        def stop() -> None:
            recorder.profiler.callback = None
            if sys.getprofile() is profile:  # a later profiler of the program stays
                sys.setprofile(None)

        def switch(off: bool) -> None:
            self._drop_open_calls(opened)
            if off:
                stop()
            elif sys.getprofile() is None:
                sys.setprofile(profile)
                recorder.profiler.callback = profile

        self._switch = switch
        recorder.add_listener(self)
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
        # While the interpreter ends, the globals of this module are None, and finalizers still call functions.
        unknown, disable, frame_of_caller = _UNKNOWN, monitoring.DISABLE, sys._getframe

        def started(code: CodeType, offset: int) -> Any:
            if recorder.hooks.thread.suspended:
                return None  # the compiler runs generated code under names of the project
            function = functions.get(id(code), unknown)
            frame = frame_of_caller(1)
            if function is unknown:
                if not recorder.active:
                    return None
                function = learn(code, frame.f_globals.get("__name__", ""))
            if function is None:
                return disable
            call = begins(function, code, frame)
            if call is not None:
                stack.opened.append(call)
            return None

        def returned(code: CodeType, offset: int, value: Any) -> Any:
            if functions.get(id(code), unknown) is None:  # an entry may have been evicted, see `BoundedCache`
                return disable
            if not recorder.hooks.thread.suspended and stack.opened and stack.opened[-1].frame_or_code is code:
                ends(stack.opened.pop(), value)
            return None

        def unwound(code: CodeType, offset: int, error: BaseException) -> None:
            if not recorder.hooks.thread.suspended and stack.opened and stack.opened[-1].frame_or_code is code:
                fails(stack.opened.pop())

        monitoring.use_tool_id(tool, "traincheck")
        callbacks = {events.PY_START: started, events.PY_RETURN: returned, events.PY_UNWIND: unwound}
        for event, callback in callbacks.items():
            monitoring.register_callback(tool, event, callback)
        all_events = events.PY_START | events.PY_RETURN | events.PY_UNWIND
        monitoring.set_events(tool, all_events)
        monitoring.restart_events()  # re-enable code that an earlier demand disabled

        def switch(off: bool) -> None:
            self._drop_open_calls(stack.opened)
            monitoring.set_events(tool, 0 if off else all_events)

        self._switch = switch
        recorder.add_listener(self)

        def stop() -> None:
            monitoring.set_events(tool, 0)
            for event in callbacks:
                monitoring.register_callback(tool, event, None)  # Python keeps them, and all that they hold, otherwise
            monitoring.free_tool_id(tool)

        undo.callback(stop)


def _is_method(code: CodeType, name: str) -> bool:
    """Whether this is a method of that name.

    Code has no qualified name before Python 3.11; there a first argument named `self` shows a method.
    """
    return code.co_name == name and ("." in qualified_name(code) or code.co_varnames[:1] == ("self",))


def _builds_layers(code: CodeType) -> bool:
    """Return whether this is a constructor that receives a number of layers."""
    return code.co_name == "__init__" and code.co_argcount > 1 and any(map(is_layer_count, argument_names(code)))


def _constructor(cls: type[nn.Module]) -> Any:
    return getattr(cls.__init__, "__code__", None)


def class_counts(module: nn.Module) -> str:
    """Return the number of modules of each class in `module`, and layers of recurrent ones, joined by +."""
    inside = [inner for inner in module.modules() if inner is not module]
    counts = set(Counter(map(type, inside)).values())
    counts.update(inner.num_layers for inner in inside if isinstance(inner, nn.RNNBase))
    return "+".join(map(str, sorted(counts)))


def _may_be_project(api: str, sites: CallSites) -> bool:
    """Return whether a demanded name can be a project function (forwards are excluded, see `_levels_of`)."""
    package, _, rest = api.partition(".")
    if package == "torch" or api.endswith(".forward"):
        return False
    try:
        spec = importlib.util.find_spec(package) if rest else None  # else it is a kind of functions
    except (ImportError, ValueError):
        return True
    return spec is None or spec.origin is None or sites.is_observed_file(spec.origin, package)


class _FirstUpdate(RecorderListener):
    """Calls a function after the first update."""

    def __init__(self, recorder: Recorder, function: Callable[[], object]) -> None:
        self._recorder = recorder
        self._function = function

    def optimizer_stepped(self) -> None:
        self._recorder.remove_listener(self)
        self._function()
