"""Source `compiled`: calls of what `torch.compile` has made, told from outside.

Note [Compiled regions]
Nothing is observed inside of a compiled callable; it is run as if we were not there, see Note [Stepping aside] in
global_hooks.py. What it does as a whole is told: a module that is called in training or evaluation, an optimizer that
steps (with what becomes of each parameter). Around what is run the event of a region `torch.compile` is left, by which
relations know that the call around it has an inside that was not seen.

Note [Trained unseen]
Of a function that may do anything (forward, backward and update in one) it is only found out afterwards that
parameters were updated. The step is counted, and for the rest the window is cut off from the others as if some had been
dropped (`Recorder.mark_unseen_training`).
"""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable
from contextlib import ExitStack
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch.nn.modules import module as torch_modules
from torch.optim import Optimizer

from traincheck.sources.base import replace, replace_everywhere, wrapping
from traincheck.sources.compile.compiled_callables import CompiledTarget, identify_target
from traincheck.sources.compile.skipped_code import skip_own_code
from traincheck.sources.gradients.gradients import Gradients
from traincheck.sources.modules.variables import VariableCatalog
from traincheck.sources.recording.context_facts import CallContext, context_facts
from traincheck.sources.recording.frames import local_values
from traincheck.sources.recording.patches import UndoStack
from traincheck.sources.recording.recorder import OpenCall, Recorder
from traincheck.sources.tensors.storages import version_of
from traincheck.vocab.demand import Demand
from traincheck.vocab.events import COMPILED, REGION, TOUCHES
from traincheck.vocab.facts import Facts, facts

COMPILER, RULES, TABLE = "torch._dynamo", "torch._dynamo.trace_rules", "get_torch_obj_rule_map"
EVAL_FRAME, CALLBACKS = "torch._dynamo.eval_frame", "torch._dynamo.callback"
CONTEXT = "_TorchDynamoContext"
"""The class of which torch makes an object for each use of `torch.compile`, with a list of functions to call at the
beginning of each call; what these return is called at its end."""

CALL_HOOK = "install_generation_tagging_init"
"""A function that such an object calls at the beginning of each call, whenever it was made."""

CAPTURES: tuple[tuple[str, str], ...] = (
    ("torch._dynamo.convert_frame", "fullgraph_capture"),
    ("torch.export._trace", "_export"),
    ("torch.export._trace", "_export_for_training"),
)
"""Functions, by module, that trace a model to export it or to compile it ahead of time: no training is told of them."""

FORCE_EAGER = "force_eager"
"""What a program tells torch (`torch.compiler.set_stance`) to have everything run as if nothing were compiled."""

WhenImported = Callable[[str, Callable[[], Any], Callable[[], Callable[[], None]] | None], Callable[[], None]]


def ignore_imports(
    name: str, callback: Callable[[], Any], around: Callable[[], Callable[[], None]] | None
) -> Callable[[], None]:
    """Where nobody tells of imports: a compiler that comes later is not found."""
    return lambda: None


class _CompiledCall(NamedTuple):
    """What is about to be called, and with what. `frame` is that of torch's function around it."""

    target: CompiledTarget
    args: Any
    keywords: Any
    frame: FrameType


_EAGER: Any = object()


class _Region(NamedTuple):
    """A call of something compiled, under way; `raising` is what was being handled when it began."""

    target: CompiledTarget
    args: Any
    call: OpenCall
    frame: FrameType
    raising: BaseException | None
    states: dict[str, _State]


class CompiledCallSource:
    """Tells of calls of compiled modules, steps and functions, and keeps us out of them.

    Known limitations: what is compiled is found out from torch's own objects; with a version of torch that keeps them
    otherwise, compiled regions trace our hooks and pass them over, and steps inside of them are not seen.
    """

    name = "compiled"

    def __init__(
        self,
        catalog: VariableCatalog,
        gradients: Gradients,
        call_context: CallContext,
        may_step: Callable[[], None],
        when_imported: WhenImported,
    ) -> None:
        self._catalog = catalog
        self._gradients = gradients
        self._call_context = call_context
        self._may_step = may_step
        self._when_imported = when_imported
        self._watched: list[weakref.ref[Any]] = []
        self._reported: set[tuple[str, str]] = set()

    def offers(self) -> str | None:
        return None

    def attach(self, demand: Demand, recorder: Recorder) -> ExitStack:
        self._recorder = recorder
        self._undo = undo = UndoStack()
        guarded = functools.partial(recorder.guarded, self.name, always=True)  # steps are counted in any case
        self._look, self._begin, self._end = guarded(self._find), guarded(self._begins), guarded(self._ends)
        undo.callback(self._forget)
        undo.callback(self._when_imported(COMPILER, _no_op, functools.partial(self._suspend_hooks, methods=True)))
        for home in {EVAL_FRAME, RULES, *(home for home, _ in CAPTURES)}:
            undo.callback(self._when_imported(home, functools.partial(self._imported, home), None))
        return undo

    # -- the compiler of torch -------------------------------------------------------------------------------------

    def _imported(self, home: str) -> None:
        """A module of the compiler is there. (It may be imported by a call of something compiled.)"""
        if self._recorder.active:
            try:
                handlers = {EVAL_FRAME: self._eval_frame_imported, RULES: self._rules_imported}
                handlers.get(home, functools.partial(self._captures_imported, home))()
            except Exception as error:
                self._recorder.fault(self.name, error)

    def _eval_frame_imported(self) -> None:
        """The compiler is there: watch what it makes, and what it has made."""
        module = sys.modules[EVAL_FRAME]
        context = getattr(module, CONTEXT, None)
        if context is None:
            self._recorder.report_unobservable(f"{self.name}: this version of torch has no {EVAL_FRAME}.{CONTEXT}")
            return
        made = wrapping(lambda me, *args, **kwargs: me, lambda me, _: self._watch(me), lambda me: None)
        replace(self._undo, context, "__init__", made)
        replace(self._undo, torch_modules, "_has_any_global_hook", self._has_hooks_of_others)
        skip_own_code(getattr(module, "skip_code", None))
        replace(
            self._undo, module, CALL_HOOK, wrapping(lambda: True, lambda *_: self._watch_late(), lambda token: None)
        )
        self._undo.callback(self._forget_compiling)

    def _captures_imported(self, home: str) -> None:
        """The module `home` is there, which has some of `CAPTURES`: keep us out of them."""

        def begins(*args: Any, **kwargs: Any) -> Callable[[], None] | None:
            if self._recorder.hooks.thread.suspended or not self._recorder.active:
                return None
            return self._suspend_hooks(methods=True)

        around = wrapping(begins, lambda leave, _: leave(), lambda leave: leave())
        for name in (name for module, name in CAPTURES if module == home):
            replace_everywhere(self._undo, home, name, around)

    def _rules_imported(self) -> None:
        """The compiler lists functions by identity when it needs that first: those are to be torch's own."""
        module: Any = sys.modules[RULES]
        original: Any = getattr(module, TABLE, None)
        if not hasattr(original, "cache_info"):
            return

        def table() -> Any:
            if self._recorder.hooks.thread.suspended or original.cache_info().currsize:
                return original()
            leave = self._suspend_hooks(methods=True)
            try:
                return original()
            finally:
                leave()

        functools.update_wrapper(table, original, ("cache_info", "cache_clear"))
        replace(self._undo, module, TABLE, lambda _: table)

    def _watch(self, context: Any) -> None:
        """Be told of the calls of what is compiled by `context`. (It may be made where the compiler looks at every
        function of Python's that is called, which therefore is none but this.)"""
        hooks = getattr(context, "enter_exit_hooks", None)
        if type(hooks) is list and self._enters not in hooks:
            hooks.insert(0, self._enters)
            self._watched.append(weakref.ref(context, self._watched.remove))

    def _watch_late(self) -> None:
        """Watch what calls us just now, if it was made before we came. What is added to its list is called at once."""
        frame = _call_under_way() if self._recorder.active else None
        context = local_values(frame, ("self",)).get("self") if frame is not None else None
        hooks = getattr(context, "enter_exit_hooks", None)
        if type(hooks) is list and self._enters not in hooks:
            hooks.append(self._enters)
            self._watched.append(weakref.ref(context, self._watched.remove))

    def _forget(self) -> None:
        for reference in list(self._watched):
            context = reference()
            if context is not None and self._enters in context.enter_exit_hooks:
                context.enter_exit_hooks.remove(self._enters)
        self._watched.clear()

    # -- compiling by itself ---------------------------------------------------------------------------------------

    def _watch_compiling(self) -> None:
        """A backward is compiled when it first runs: what torch computes for that is no work of the program's, so our
        mode is taken off. (A reset of the compiler forgets that we want to know.)"""
        handler = getattr(sys.modules.get(CALLBACKS), "callback_handler", None)
        if handler is not None and self._compiling not in handler.start_callbacks:
            handler.start_callbacks.append(self._compiling)
            handler.end_callbacks.append(self._compiled)

    def _forget_compiling(self) -> None:
        handler = getattr(sys.modules.get(CALLBACKS), "callback_handler", None)
        if handler is not None and self._compiling in handler.start_callbacks:
            handler.start_callbacks.remove(self._compiling)
            handler.end_callbacks.remove(self._compiled)

    def _compiling(self, *_: Any) -> None:
        if self._recorder.active and not self._recorder.hooks.thread.suspended:
            self._recorder.hooks.suspend_mode()

    def _compiled(self, *_: Any) -> None:
        self._recorder.hooks.resume_mode()

    # -- hooks of others -------------------------------------------------------------------------------------------

    def _has_hooks_of_others(self, original: Callable[[], bool]) -> Callable[[], bool]:
        """In place of torch's `_has_any_global_hook`, by which it warns the user of hooks for all modules."""
        return lambda: not self._recorder.hooks.are_only_module_hooks()

    # -- a call ----------------------------------------------------------------------------------------------------

    def _enters(self) -> Callable[[], None]:
        """Called by torch at the beginning of a call of something compiled; returns what it calls at the end."""
        recorder = self._recorder
        if not recorder.active or recorder.hooks.thread.suspended:
            return _no_op
        self._watch_compiling()
        recorder.hooks.resume_mode()  # where several threads compile at once, torch tells only one of them of the end
        compiled_call = self._look()
        if compiled_call is _EAGER:
            return _no_op
        if compiled_call is not None and compiled_call.target.optimizer is not None:
            self._may_step()
        region = self._begin(compiled_call) if compiled_call is not None else None
        leave = self._suspend_hooks(methods=compiled_call is None or compiled_call.target.module is None)

        def leaves() -> None:
            leave()
            if region is not None:
                self._end(region)

        return leaves

    def _suspend_hooks(self, *, methods: bool) -> Callable[[], None]:
        recorder = self._recorder
        paused = recorder.profiler.pause()
        token = recorder.hooks.suspend(methods=methods)

        def leave() -> None:
            recorder.hooks.resume(token)
            if paused:
                recorder.profiler.resume()

        return leave

    def _find(self) -> Any:
        """What is called just now; None where it cannot be told, or is no call (but an export)."""
        frame = _call_under_way()
        if frame is None:
            return None
        values = local_values(frame, ("self", "fn", "args", "kwargs"))
        if getattr(values.get("self"), "export", False):
            return None
        if getattr(getattr(sys.modules[EVAL_FRAME], "_stance", None), "stance", "") == FORCE_EAGER:
            return _EAGER
        args, keywords = values.get("args", ()), values.get("kwargs", {})
        return _CompiledCall(identify_target(values.get("fn"), args, keywords), args, keywords, frame)

    def _begins(self, compiled_call: _CompiledCall) -> _Region:
        recorder, target = self._recorder, compiled_call.target
        states: dict[str, _State] = {}
        if target.module is not None:
            recorder.hooks.before_module(target.module, compiled_call.args, compiled_call.keywords)
        if target.optimizer is not None:
            recorder.hooks.before_step(target.optimizer)
        if not target.is_known and not self._call_context.training_flags:  # within a model's forward nothing is trained
            states = {name: _state_of(optimizer) for name, optimizer in self._catalog.optimizers()}
            self._note_activity(target)
        call = recorder.enter(REGION, (COMPILED,), target.name, context_facts())
        return _Region(target, compiled_call.args, call, compiled_call.frame, sys.exc_info()[1], states)

    def _note_activity(self, target: CompiledTarget) -> None:
        """A function that is called from outside any module may be what a step begins with."""
        steps, seq, grad = self._recorder.steps, self._recorder.next_seq(), torch.is_grad_enabled()
        if target.model is not None:
            steps.forward(seq, target.model.training, grad)
        elif grad:
            steps.computation_begins(seq)

    def _ends(self, region: _Region) -> None:
        recorder, target = self._recorder, region.target
        if sys.exc_info()[1] is not region.raising:
            recorder.abandon(region.call)
            result = None
        else:
            recorder.leave(region.call, self._find_updates(region))
            result = local_values(region.frame, ("result",)).get("result")
            if target.optimizer is not None:
                recorder.hooks.after_step(target.optimizer)
            for scheduler in target.schedulers:
                recorder.after_schedule(scheduler)
        if target.module is not None:
            recorder.hooks.after_module(target.module, region.args, result)
        self._report_unobserved(target.name)

    def _find_updates(self, region: _Region) -> Facts:
        """What a function of which nothing was known did to the training; an update in it is counted as a step."""
        seq, updated = region.call.seq, []
        for name, optimizer in self._catalog.optimizers() if region.states else ():
            before, now = region.states.get(name), _state_of(optimizer)
            if before is None or before == now:
                continue
            updated.append(name)
            if before.parameters != now.parameters:
                self._recorder.steps.update_begins(name, seq)
                self._recorder.steps.update_ends(name)
                self._gradients.step_ends(name)
            if before.parameters != now.parameters or before.rates != now.rates:
                self._recorder.mark_unseen_training(seq)
                self._report_unobserved(region.target.name, " and of what it trains only the steps are counted")
        return facts(**{TOUCHES: True}) if updated else ()

    def _report_unobserved(self, name: str, further: str = "") -> None:
        """Say once for each thing that is compiled what is not observed of it."""
        if (name, further) not in self._reported:
            self._reported.add((name, further))
            self._recorder.report_unobservable(
                f"{self.name}: what torch.compile({name}) computes is not observed inside{further}"
            )


def _no_op() -> None:
    """What torch calls at the end of a call that is not told of."""


def _call_under_way() -> FrameType | None:
    """The frame of torch's function around the call that begins just now."""
    frame: FrameType | None = sys._getframe(1)
    inside = False
    while frame is not None:
        if frame.f_globals.get("__name__") == EVAL_FRAME:
            inside = True
            if "fn" in frame.f_code.co_freevars:
                return frame
        elif inside:
            return None
        frame = frame.f_back
    return None


class _State(NamedTuple):
    """How often the parameters of an optimizer and their gradients were written to, and its learning rates."""

    parameters: list[int | None]
    gradients: list[tuple[int, int | None] | None]
    rates: list[float]


def _state_of(optimizer: Optimizer) -> _State:
    params = [param for group in optimizer.param_groups for param in group["params"]]
    grads = [param.grad for param in params]
    return _State(
        [version_of(param) for param in params],
        [None if grad is None else (id(grad), version_of(grad)) for grad in grads],
        [group["lr"] for group in optimizer.param_groups if isinstance(group.get("lr"), float)],
    )
