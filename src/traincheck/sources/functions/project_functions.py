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

from traincheck.sources.gradients.custom_clipping import CLIP, OwnClipping
from traincheck.sources.gradients.custom_clipping import Begun as Clipping
from traincheck.sources.recording.api_names import main_name
from traincheck.sources.recording.call_sites import MOST_CODE, Sites, qualified_name
from traincheck.sources.recording.context_facts import Surroundings, circumstances_amid, result_facts
from traincheck.sources.recording.frames import argument_names, further_names, local_values, returning
from traincheck.sources.recording.recorder import OpenCall, Recorder
from traincheck.sources.recording.thread_profiler import ThreadProfiler
from traincheck.sources.tensors.call_summaries import Asked, Before, Summaries, asked
from traincheck.vocab.bounded_cache import KeptOf
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


class _Known(NamedTuple):
    """A function that is observed: its name, what is told of its calls, the places where it returns.

    `receiver` is the name of the module under construction, for a constructor that is given a number of layers, and
    `limit` that of the argument which bounds the norm of gradients, or has the bound, for a function that clips.
    """

    levels: tuple[str, ...]
    asked: Asked | None
    arguments: tuple[str, ...]
    returns: frozenset[int]
    receiver: str = ""
    limit: str = ""


class _Open(NamedTuple):
    """A call under way. `of` is its frame, or its code where frames are not told; `built` the module that it makes.

    `call` is None for a call that is not told of any more, see `MOST_CALLS`.
    """

    of: FrameType | CodeType
    call: OpenCall | None
    known: _Known
    before: Before | None
    built: weakref.ref[Any] | None = None
    clipping: Clipping | None = None


class _Stack(threading.local):
    def __init__(self) -> None:
        self.opened: list[_Open] = []


class ProjectSource:
    """Observes calls of functions whose file belongs to the project (see `Sites`) or to a named package."""

    name = "project"

    def __init__(self, sites: Sites, summaries: Summaries, surroundings: Surroundings, clipping: OwnClipping) -> None:
        self._sites = sites
        self._summaries = summaries
        self._surroundings = surroundings
        self._clipping = clipping
        self._known: KeptOf[_Known | None] = KeptOf(MOST_CODE)
        self._stack = _Stack()  # on Python 3.12 and later
        self._opened: list[_Open] = []  # before
        self._window = -1
        self._often: Counter[tuple[str, ...]] = Counter()  # in that window, by the levels of the function

    def offers(self) -> str | None:
        if sys.version_info < (3, 12) and sys.getprofile() is not None:
            return "another profiler is active (sys.setprofile)"
        return None

    def attach(self, demand: Demand, recorder: Recorder) -> ExitStack:
        self._demand = demand
        self._recorder = recorder
        self._clips = demand.wants_state((CLIP,), NUMBERS)
        self._known.clear()
        undo = ExitStack()
        cheap = sys.version_info >= (3, 12)
        if not any((demand.everything, self._clips and cheap, *map(_may_be_project, demand.apis))):
            self._let_go(self._opened if sys.version_info < (3, 12) else self._stack.opened)
            return undo
        if sys.version_info >= (3, 12):
            self._monitor(undo)
        else:
            self._profile(undo)
        return undo

    def _let_go(self, opened: list[_Open]) -> None:
        """Nobody will see the end of these calls."""
        for one in reversed(opened):
            if one.call is None:
                self._recorder.profiler.helpers -= 1
            else:
                self._recorder.let_go(one.call)
        opened.clear()

    def _learn(self, code: CodeType, module: str) -> _Known | None:
        """What is known of a project function, None for code that is not observed."""
        if not self._sites.file_of(code) or code.co_name in _HIDDEN or code.co_flags & _GENERATOR:
            self._known.put_of(code, None)  # nearly all code is somebody else's
            return None
        names = (*argument_names(code), *further_names(code))
        receiver = code.co_varnames[0] if _builds_layers(code) else ""
        kinds = (LAYERED,) if receiver else kinds_of_function(code.co_name, argument_names(code))
        levels = self._told(code, module, kinds)
        known = None
        if levels is not None:
            what = asked(self._demand, (*levels, *kinds), ())
            limit = self._clipping.limit_of(code) if self._clips and not receiver else ""
            known = _Known(levels, what, names, returning(code), receiver, limit)
        return self._known.put_of(code, known)

    def _told(self, code: CodeType, module: str, kinds: tuple[str, ...]) -> tuple[str, ...] | None:
        """The levels of a project function, None for code that is not observed."""
        name = qualified_name(code)
        if "<locals>" in name or name.endswith(".forward"):
            return None  # a module's forward is observed as such
        if name.endswith(".__init__") and LAYERED not in kinds:
            return None
        levels = (f"{main_name() if module == '__main__' else module}.{name}",)
        wanted = self._demand.wants_call((*levels, *kinds))
        wanted = wanted or (self._clips and bool(self._clipping.limit_of(code)))
        return levels if wanted else None

    def _begins(self, known: _Known, of: FrameType | CodeType, frame: FrameType) -> _Open | None:
        if self._recorder.asks:
            return None
        if self._is_enough(known):
            self._recorder.profiler.helpers += 1
            return _Open(of, None, known, None)
        built = None
        if known.receiver:
            module = local_values(frame, (known.receiver,)).get(known.receiver)
            # The constructor of a base class leaves a module that is not whole yet.
            if not isinstance(module, nn.Module) or _constructor(type(module)) is not frame.f_code:
                return None
            built = weakref.ref(module)
        call = self._recorder.enter(PROJECT, known.levels, "", circumstances_amid(self._surroundings))
        before = clipping = None
        arguments = local_values(frame, known.arguments) if known.asked is not None or known.limit else {}
        if known.asked is not None:
            before = self._summaries.begins(call, known.asked, (), arguments)
        if known.limit:
            clipping = self._clipping.begins(local_values(frame, (known.limit,)).get(known.limit), arguments)
        return _Open(of, call, known, before, built, clipping)

    def _is_enough(self, known: _Known) -> bool:
        """Whether the window that is open has enough calls of this function; this one is counted."""
        if self._window != self._recorder.window:
            self._window = self._recorder.window
            self._often.clear()
        self._often[known.levels] += 1
        return self._often[known.levels] > MOST_CALLS

    def _ends(self, opened: _Open, result: Any) -> None:
        call, what = opened.call, opened.known.asked
        if call is None:
            self._recorder.profiler.helpers -= 1
            return
        if not self._recorder.watching:
            return
        if opened.clipping is not None:
            self._clipping.ends(opened.clipping, result, self._recorder)
        module = opened.built() if opened.built is not None else None
        if module is not None:
            self._recorder.leave(call, facts(layers=class_counts(module)))
        elif what is None:
            self._recorder.leave(call, result_facts(result))
        else:
            self._recorder.leave(call, self._summaries.ends(call, what, opened.before, result))

    def _fails(self, opened: _Open) -> None:
        if opened.call is None:
            self._recorder.profiler.helpers -= 1
        else:
            self._recorder.abandon(opened.call)

    # -- before Python 3.12 ----------------------------------------------------------------------------------------

    def _profile(self, undo: ExitStack) -> None:
        recorder, functions = self._recorder, self._known
        opened = self._opened
        guarded = recorder.guarded
        begins, learn = guarded(self.name, self._begins), guarded(self.name, self._learn)
        ends, fails = (guarded(self.name, f, always=True) for f in (self._ends, self._fails))

        def profile(frame: FrameType, event: str, arg: Any) -> None:
            # Python calls this for everything that the thread does, C functions included: the common case goes first.
            if event == "call":
                code = frame.f_code
                known = functions.get(id(code), _UNKNOWN)
                if known is _UNKNOWN:
                    if not recorder.active:
                        return  # the interpreter may be shutting down, with half of its modules gone
                    known = learn(code, frame.f_globals.get("__name__", ""))
                if known is not None:
                    call = begins(known, frame, frame)
                    if call is not None:
                        opened.append(call)
            elif event == "return" and opened and opened[-1].of is frame:
                call = opened.pop()
                # A function that raises is told to return None, too.
                if arg is not None or frame.f_lasti in call.known.returns:
                    ends(call, arg)
                else:
                    fails(call)

        sys.setprofile(profile)
        recorder.profiler.ours = profile
        recorder.gaps.costly.append(ThreadProfiler(recorder.profiler, opened))

        def stop() -> None:
            recorder.profiler.ours = None
            if sys.getprofile() is profile:  # a profiler that came after us is not ours to remove
                sys.setprofile(None)

        def switch(off: bool) -> None:
            self._let_go(opened)
            if off:
                stop()
            elif sys.getprofile() is None:
                sys.setprofile(profile)
                recorder.profiler.ours = profile

        recorder.switches[self.name] = switch
        undo.callback(stop)

    # -- Python 3.12 and later -------------------------------------------------------------------------------------

    def _monitor(self, undo: ExitStack) -> None:
        monitoring = sys.monitoring  # type: ignore[attr-defined]
        tool = next((tool for tool in (4, 3) if monitoring.get_tool(tool) is None), None)
        if tool is None:
            return
        events = monitoring.events
        recorder, functions = self._recorder, self._known
        stack = self._stack
        guarded = recorder.guarded
        begins, learn = guarded(self.name, self._begins), guarded(self.name, self._learn)
        ends, fails = (guarded(self.name, f, always=True) for f in (self._ends, self._fails))

        def started(code: CodeType, offset: int) -> Any:
            if recorder.hooks.here.aside:
                return None  # the compiler runs code of its own making under the names of the project's
            known = functions.get(id(code), _UNKNOWN)
            frame = sys._getframe(1)
            if known is _UNKNOWN:
                if not recorder.active:
                    return None
                known = learn(code, frame.f_globals.get("__name__", ""))
            if known is None:
                return monitoring.DISABLE
            call = begins(known, code, frame)
            if call is not None:
                stack.opened.append(call)
            return None

        def returned(code: CodeType, offset: int, value: Any) -> Any:
            if functions.get(id(code), _UNKNOWN) is None:  # what was known may have been let go, see `Kept`
                return monitoring.DISABLE
            if not recorder.hooks.here.aside and stack.opened and stack.opened[-1].of is code:
                ends(stack.opened.pop(), value)
            return None

        def unwound(code: CodeType, offset: int, error: BaseException) -> None:
            if not recorder.hooks.here.aside and stack.opened and stack.opened[-1].of is code:
                fails(stack.opened.pop())

        monitoring.use_tool_id(tool, "traincheck")
        monitoring.register_callback(tool, events.PY_START, started)
        monitoring.register_callback(tool, events.PY_RETURN, returned)
        monitoring.register_callback(tool, events.PY_UNWIND, unwound)
        all_events = events.PY_START | events.PY_RETURN | events.PY_UNWIND
        monitoring.set_events(tool, all_events)
        monitoring.restart_events()  # code that was of no interest to another demand

        def switch(off: bool) -> None:
            self._let_go(stack.opened)
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
    inside = [one for one in module.modules() if one is not module]
    counts = set(Counter(map(type, inside)).values())
    counts.update(one.num_layers for one in inside if isinstance(one, nn.RNNBase))
    return "+".join(map(str, sorted(counts)))


def _may_be_project(api: str) -> bool:
    """Whether a demanded name can be a project function's (a module's forward is observed as such, see `_told`)."""
    return not api.startswith("torch.") and not api.endswith(".forward")
