"""Source `compiled`: records calls of functions and models made by `torch.compile`, as a whole.

Note [Compiled regions]
TrainCheck observes nothing inside a compiled callable, which runs as it would without TrainCheck; see Note [Suspended
while compiled code runs] in global_hooks.py. It records the call as a whole: a module called in training or evaluation,
or an optimizer step with its effect on each parameter. An event of the region `torch.compile` marks the call, so that
relations know that the call around it has unobserved parts. What the compiler traced is described by
compiled_graphs.py.

Note [Unobserved training]
A function may run forward, backward and update in one compiled call. TrainCheck learns only afterwards that parameters
were updated. It counts the step, and separates the window from the others as if windows had been dropped
(`Recorder.mark_unseen_training`).
"""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable
from contextlib import ExitStack
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple

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

if TYPE_CHECKING:
    from traincheck.sources.compile.compiled_graphs import CompiledGraphs

COMPILER, RULES, TABLE = "torch._dynamo", "torch._dynamo.trace_rules", "get_torch_obj_rule_map"
EVAL_FRAME, CALLBACKS = "torch._dynamo.eval_frame", "torch._dynamo.callback"
CONTEXT = "_TorchDynamoContext"
"""The torch class with an object per use of `torch.compile`. Its list of functions is called at the beginning of each
call; the functions they return are called at its end."""

CALL_HOOK = "install_generation_tagging_init"
"""A function that such an object calls at the beginning of each call, whenever the object was created."""

CAPTURES: tuple[tuple[str, str], ...] = (
    ("torch._dynamo.convert_frame", "fullgraph_capture"),
    ("torch.export._trace", "_export"),
    ("torch.export._trace", "_export_for_training"),
)
"""Functions, by module, that trace a model for export or ahead-of-time compilation: they record no training."""

FORCE_EAGER = "force_eager"
"""The stance (`torch.compiler.set_stance`) in which everything runs without compilation."""

WhenImported = Callable[[str, Callable[[], Any], Callable[[], Callable[[], None]] | None], Callable[[], None]]


def ignore_imports(
    name: str, callback: Callable[[], Any], around: Callable[[], Callable[[], None]] | None
) -> Callable[[], None]:
    """Stand-in for import notification: a compiler imported later is not found."""
    return lambda: None


class _CompiledCall(NamedTuple):
    """A compiled call about to begin, with its arguments. `frame` is the torch function around it."""

    target: CompiledTarget
    args: Any
    keywords: Any
    frame: FrameType


_EAGER: Any = object()

_UNKNOWN_RESULT = object()
"""Stands for the result of a compiled call before torch 2.12, which keeps it in a local variable that can be read."""


class _Region(NamedTuple):
    """A compiled call under way; `raising` is the exception being handled when it began."""

    target: CompiledTarget
    args: Any
    call: OpenCall
    frame: FrameType
    raising: BaseException | None
    states: dict[str, _State]


class CompiledCallSource:
    """Records calls of compiled modules, steps and functions, and keeps TrainCheck out of them.

    Known limitations: TrainCheck finds compiled callables through internal objects of torch. Where a torch version
    changes these, compiled regions trace TrainCheck's hooks, and steps inside them are missed. Before torch 2.12, the
    results of compiled models are not recorded.
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
        self._graphs: CompiledGraphs | None = None
        self._skip: Any = None  # a function of the compiler, until something is compiled

    def offers(self) -> str | None:
        return None

    def attach(self, demand: Demand, recorder: Recorder) -> ExitStack:
        self._recorder = recorder
        self._undo = undo = UndoStack()
        self._demand = demand
        guarded = functools.partial(recorder.guarded, self.name, always=True)  # steps are always counted
        self._find_call, self._begin, self._end = guarded(self._find), guarded(self._begins), guarded(self._ends)
        undo.callback(self._forget)
        undo.callback(self._when_imported(COMPILER, _no_op, functools.partial(self._suspend_hooks, methods=True)))
        for home in {EVAL_FRAME, RULES, *(home for home, _ in CAPTURES)}:
            undo.callback(self._when_imported(home, functools.partial(self._imported, home), None))
        if not recorder.reattaching:
            self._skip_own_code()  # something may be compiled already
        return undo

    # -- the compiler of torch -------------------------------------------------------------------------------------

    def _imported(self, home: str) -> None:
        """Handle the import of a compiler module. (A compiled call may import it.)"""
        if self._recorder.active:
            try:
                handlers = {EVAL_FRAME: self._eval_frame_imported, RULES: self._rules_imported}
                handlers.get(home, functools.partial(self._captures_imported, home))()
            except Exception as error:
                self._recorder.fault(self.name, error)

    def _eval_frame_imported(self) -> None:
        """Observe existing and future compiled callables."""
        module = sys.modules[EVAL_FRAME]
        from traincheck.sources.compile.compiled_graphs import CompiledGraphs  # not before the compiler of torch

        if self._graphs is None or not self._recorder.reattaching:
            self._graphs = CompiledGraphs(self._recorder)
        self._graphs.attach(self._undo, self._demand)
        context = getattr(module, CONTEXT, None)
        if context is None:
            self._recorder.report_unobservable(f"{self.name}: this version of torch has no {EVAL_FRAME}.{CONTEXT}")
            return
        init_wrapper = wrapping(lambda me, *args, **kwargs: me, lambda me, _: self._watch(me), lambda me: None)
        replace(self._undo, context, "__init__", init_wrapper)
        replace(self._undo, torch_modules, "_has_any_global_hook", self._has_program_hooks)
        self._skip = getattr(module, "skip_code", None)
        replace(
            self._undo, module, CALL_HOOK, wrapping(lambda: True, lambda *_: self._watch_late(), lambda token: None)
        )
        self._undo.callback(self._forget_compiling)

    def _captures_imported(self, home: str) -> None:
        """Suspend TrainCheck inside the `CAPTURES` of the module `home`."""

        def begins(*args: Any, **kwargs: Any) -> Callable[[], None] | None:
            if self._recorder.hooks.thread.suspended or not self._recorder.active:
                return None
            return self._suspend_hooks(methods=True)

        around = wrapping(begins, lambda leave, _: leave(), lambda leave: leave())
        for name in (name for module, name in CAPTURES if module == home):
            replace_everywhere(self._undo, home, name, around)

    def _rules_imported(self) -> None:
        """Have the compiler list torch functions, which it identifies by identity, without TrainCheck's wrappers."""
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
        """Observe the calls of `context`. (It may be created while the compiler inspects every Python function called,
        so this is the only function involved, but for the first context that compiles.)"""
        if self._skip is not None and getattr(context, "callback", None):
            self._skip_own_code()
        hooks = getattr(context, "enter_exit_hooks", None)
        if type(hooks) is list and self._enters not in hooks:
            hooks.insert(0, self._enters)
            self._watched.append(weakref.ref(context, self._watched.remove))

    def _skip_own_code(self) -> None:
        """Have the compiler skip TrainCheck's functions, which takes a tenth of a second. Each optimizer of torch
        imports the compiler, and most programs compile nothing."""
        skip, self._skip = self._skip, None
        skip_own_code(skip)

    def _watch_late(self) -> None:
        """Observe the current caller, if it was created before TrainCheck attached. A hook added to its list is called
        at once."""
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

    # -- compilation itself ----------------------------------------------------------------------------------------

    def _watch_compiling(self) -> None:
        """Switch the recording mode off during compilation, which is no work of the program.

        A backward is compiled when it first runs. A reset of the compiler removes these callbacks.
        """
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

    # -- hooks of the program ---------------------------------------------------------------------------------------

    def _has_program_hooks(self, original: Callable[[], bool]) -> Callable[[], bool]:
        """Replace torch's `_has_any_global_hook`, which warns the user of hooks for all modules."""
        return lambda: not self._recorder.hooks.are_only_module_hooks()

    # -- a call ----------------------------------------------------------------------------------------------------

    def _enters(self) -> Callable[[], None]:
        """Called by torch at the beginning of a compiled call; return the function to call at its end."""
        recorder = self._recorder
        if not recorder.active or recorder.hooks.thread.suspended:
            return _no_op
        self._watch_compiling()
        recorder.hooks.resume_mode()  # when several threads compile, torch notifies only one of the end
        compiled_call = self._find_call()
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
        """Return the current compiled call; None where it cannot be identified, or is an export."""
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
        if self._graphs is not None:
            self._graphs.callable_name = target.name
        states: dict[str, _State] = {}
        if target.module is not None:
            recorder.hooks.before_module(target.module, compiled_call.args, compiled_call.keywords)
        if target.optimizer is not None:
            recorder.hooks.before_step(target.optimizer)
        is_inside = bool(self._call_context.training_flags) or recorder.steps.updating  # of a model, or of an update
        if not target.is_known and not is_inside:
            states = {name: _state_of(optimizer) for name, optimizer in self._catalog.optimizers()}
            self._note_activity(target)
        call = recorder.enter(REGION, (COMPILED,), target.name, context_facts())
        return _Region(target, compiled_call.args, call, compiled_call.frame, sys.exc_info()[1], states)

    def _note_activity(self, target: CompiledTarget) -> None:
        """Note a function called outside any module: a step may begin with it."""
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
            result = local_values(region.frame, ("result",)).get("result", _UNKNOWN_RESULT)
            if target.optimizer is not None:
                recorder.hooks.after_step(target.optimizer)
            for scheduler in target.schedulers:
                recorder.report_scheduler_step(scheduler)
        if target.module is not None:
            recorder.hooks.after_module(target.module, region.args, result)
            if result is _UNKNOWN_RESULT:
                recorder.report_unobservable(
                    f"{self.name}: results of models compiled by torch.compile are not observed before torch 2.12"
                )
        if not recorder.steps.updating:  # what an optimizer computes in its step is not observed anyway
            self._report_unobserved(target.name)

    def _find_updates(self, region: _Region) -> Facts:
        """Detect what an unidentified function did to the training; an update in it counts as a step."""
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
                self._report_unobserved(region.target.name, ", and its training steps are only counted")
        return facts(**{TOUCHES: True}) if updated else ()

    def _report_unobserved(self, name: str, further: str = "") -> None:
        """Report once per compiled callable what is not observed of it."""
        if (name, further) not in self._reported:
            self._reported.add((name, further))
            self._recorder.has_compiled_code = True
            self._recorder.report_unobservable(
                f"{self.name}: the inside of torch.compile({name}) is not observed{further}"
            )


def _no_op() -> None:
    """Called by torch at the end of an unrecorded call."""


def _call_under_way() -> FrameType | None:
    """Return the frame of the torch function around the call that begins now."""
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
    """Versions of the parameters of an optimizer and of their gradients, and its learning rates."""

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
