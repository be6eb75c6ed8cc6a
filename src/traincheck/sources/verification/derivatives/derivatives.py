"""Source `derivatives`: the experiment whether the gradients of a backward are the derivative of what was computed.

Note [Which backward is verified]
In a verified step, the operations are recorded from the first call of a module that trains. A backward is verified
right after it, when the parameters and its constants are still those of the forward. The gradients are what this
backward adds to each leaf: they are read in hooks on the leaves, so before accumulation, before reduction between
ranks, before unscaling and clipping. Up to `MAX_BACKWARDS` backwards of a step are verified, each as its own function.
A leaf whose gradient passes a hook of the program is left out.

Note [Finding the cause]
If a custom function returns a wrong gradient, it is named at once. Otherwise the next step is verified as well. There,
hooks on the results of modules show where the gradient becomes wrong. A difference is reported with that step, or at
the end of the run.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from traincheck.sources.base import around_block, replace, wrapping
from traincheck.sources.compile.tracing import EXPORTS, FLAGS, is_traced
from traincheck.sources.modules.module_calls import ModuleCalls
from traincheck.sources.modules.variables import VariableCatalog
from traincheck.sources.recording.listener import RecorderListener
from traincheck.sources.recording.patches import UndoStack
from traincheck.sources.recording.recorder import Recorder
from traincheck.sources.recording.step_tracker import Cut
from traincheck.sources.replay.state_snapshot import RandomStates, is_torch_hook, without_modes
from traincheck.sources.tensors.deferred_values import is_capturing
from traincheck.sources.tensors.leaf_hooks import register_leaf_hook
from traincheck.sources.tensors.reading import hidden_from_modes
from traincheck.sources.verification.derivatives.available_memory import available_memory
from traincheck.sources.verification.derivatives.derivative_check import (
    CannotDecide,
    Difference,
    NotFinite,
    Objective,
    Unexplained,
    difference,
)
from traincheck.sources.verification.derivatives.kernel_backward import judge_kernel, kernels_of
from traincheck.sources.verification.derivatives.wrong_backward import (
    Backward,
    Boundary,
    calls_of,
    common_call,
    functions_of,
    judge_backward,
    modules_of,
    wrong_call,
)
from traincheck.sources.verification.experiment_source import ExperimentSource
from traincheck.sources.verification.tape.tape import (
    CannotExecute,
    Computation,
    CustomFunction,
    ModuleCall,
    Ref,
    first_line,
    flat_tensors,
)
from traincheck.sources.verification.tape.tape_recording import TapeRecording
from traincheck.sources.verification.verified_steps import Turn, VerifiedSteps
from traincheck.vocab.verification import AGREES, DERIVATIVE, DISAGREES, UNDECIDED

MAX_BACKWARDS = 4
"""Backwards verified in a step. Gradient accumulation may have hundreds, which are alike."""

MAX_UNDECIDED = 3
"""Attempts without a result, in a row, after which a model is not verified any more."""

MEMORY_SHARE = 0.5
"""The share of the available memory that an execution in double precision may need."""

_NO_GRAD = torch.autograd.grad_mode.no_grad


@dataclass
class _Backward:
    """A backward under way: what it differentiates, and the gradients that arrived at the leaves."""

    objective: Objective
    losses: list[torch.Tensor]
    subject: str
    drops: bool  # the graph is freed
    gradients: dict[int, torch.Tensor | None] = field(default_factory=dict)
    undo: ExitStack = field(default_factory=ExitStack)


@dataclass
class _Suspicion:
    """A difference that was found in `step`, and has to be located in a later one."""

    step: int
    subject: str
    found: str
    first: str


class DerivativeSource(ExperimentSource, RecorderListener):
    """Verifies the backwards of one of `every` steps. It attaches after the source `modules`."""

    name = "derivatives"
    experiments = (DERIVATIVE,)
    turn = Turn.DERIVATIVE

    def __init__(self, calls: ModuleCalls, catalog: VariableCatalog, steps: VerifiedSteps) -> None:
        super().__init__(steps)
        self._calls = calls
        self._catalog = catalog
        self._recording: TapeRecording | None = None
        self._step = 0
        self._model = ""  # the first that the recording saw
        self._verified = 0  # backwards of the step
        self._backward: _Backward | None = None
        self._undecided: dict[str, int] = {}  # by subject: attempts in a row without a result
        self._suspicion: _Suspicion | None = None
        self._boundaries: list[tuple[ModuleCall, Ref, list[torch.Tensor]]] = []
        self._hooks = ExitStack()
        self._hooked = False  # the program put a hook on a result
        self._follows = False  # the gradients of results of modules

    def _observe(self, undo: UndoStack, recorder: Recorder) -> None:
        recorder.add_listener(self)
        recorder.at_end(recorder.guarded(self.name, self._report_suspicion, always=True))
        self._calls.add_listener(self._call_begins, self._call_ends)
        guarded = functools.partial(recorder.guarded, self.name)
        self._start_guarded = guarded(self._quietly(self._start))
        self._end_guarded = guarded(self._quietly(self._note_result))
        begin, end = guarded(self._quietly(self._backward_begins)), guarded(self._quietly(self._backward_ends))
        around = wrapping(self._unless_idle(begin), lambda token, _: end(token), lambda token: self._on_detach())
        replace(undo, torch.autograd, "backward", around)
        replace(
            undo, torch.autograd, "grad", wrapping(self._unless_idle(self._grad_begins), self._resume, self._resume)
        )
        noted = wrapping(lambda tensor, *_: self._note_hook(tensor), lambda *_: None, lambda _: None)
        replace(undo, torch.Tensor, "register_hook", noted)
        around_block(undo, _NO_GRAD, self._no_grad_begins, lambda manager: None)
        recorder.hooks.add(undo, register_optimizer_step_pre_hook(self._update_begins), self._update_begins)
        recorder.hooks.on_suspend.append(self._suspends)
        undo.callback(recorder.hooks.on_suspend.remove, self._suspends)

    def _quietly(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return `function`, which ends the recording if it raises."""

        @functools.wraps(function)
        def quiet(*args: Any, **kwargs: Any) -> Any:
            try:
                return function(*args, **kwargs)
            except BaseException:
                self._on_detach()
                raise

        return quiet

    def _on_detach(self) -> None:
        """End the recording of a step, and remove everything from the program."""
        recording, self._recording = self._recording, None
        self._hooks.close()
        self._boundaries.clear()
        if self._backward is not None:
            self._backward.undo.close()
            self._backward = None
        if recording is not None:
            recording.turn_off()
            recording.end("the step is over")

    def window_closed(self, cut: Cut) -> None:
        self._on_detach()

    # -- recording -------------------------------------------------------------------------------------------------

    def _is_mine(self) -> bool:
        """Whether this thread makes the current recording."""
        return self._recording is not None and self._recording.is_of_this_thread

    def _unless_idle(self, before: Callable[..., Any]) -> Callable[..., Any]:
        def begins(*args: Any, **kwargs: Any) -> Any:
            if self._recording is None or self._backward is not None or not self._is_mine():
                return None
            return before(*args, **kwargs)

        return begins

    def _call_begins(self, module: nn.Module, args: Any) -> None:
        recording = self._recording
        if recording is None:
            if self._calls.depth == 1 and torch.is_grad_enabled() and self._should_record():
                self._start_guarded(module)
        elif self._is_mine() and torch._C._current_graph_task_id() < 0:
            if self._calls.depth == 1 and torch.is_grad_enabled():
                recording.turn_on()
            recording.call_begins(module)

    def _should_record(self) -> bool:
        recorder = self._recorder
        step = recorder.steps.window_step
        return (
            recorder.watching
            and recorder.active
            and recorder.hooks.in_one_thread
            and (self._verifies(step) or self._suspicion is not None)
            and torch._C._current_graph_task_id() < 0
            and not (is_traced() or FLAGS.get(EXPORTS) or torch._C._get_tracing_state() is not None or is_capturing())
        )

    def _start(self, module: nn.Module) -> None:
        with torch._C.DisableTorchFunction():  # modes of the program do not see this reading
            is_trained = any(parameter.requires_grad for parameter in module.parameters())
        if not is_trained:
            return
        name = self._catalog.model_name(module)
        step = self._recorder.steps.window_step
        if step != self._step:
            self._step, self._verified = step, 0
        if self._suspicion is not None and step - self._suspicion.step > MAX_UNDECIDED:
            self._report_suspicion()
        if self._undecided.get(name, 0) >= MAX_UNDECIDED or self._verified >= MAX_BACKWARDS:
            return
        if self._recorder.has_compiled_code:
            self._reporter.report(name, UNDECIDED, "it is compiled")
            self._undecided[name] = MAX_UNDECIDED
            return
        self._hooked, self._model = False, name
        self._recording = TapeRecording(self._recorder.sites.here)
        self._recording.turn_on()
        self._recording.call_begins(module)

    def _call_ends(self, module: nn.Module, args: Any, output: Any) -> None:
        recording = self._recording
        if recording is None or not self._is_mine() or torch._C._current_graph_task_id() >= 0:
            return
        if self._follows and not recording.failed:
            self._end_guarded(recording, output)
        recording.call_ends(module)

    def _note_result(self, recording: TapeRecording, output: Any) -> None:
        """Follow the gradient of the results of a module."""
        call = recording.call
        for tensor in flat_tensors(list(output.values()) if isinstance(output, dict) else output):
            if call is None or not tensor.requires_grad or tensor.is_leaf:
                continue
            source, arrived = recording.source_of(tensor), []  # type: tuple[Any, list[torch.Tensor]]
            if isinstance(source, Ref) and recording.has_room(tensor.nbytes):
                self._boundaries.append((call, source, arrived))
                with torch._C.DisableTorchFunction():  # modes of the program do not see this hook
                    self._hooks.callback(tensor.register_hook(functools.partial(_keep, arrived)).remove)

    def _suspends(self) -> None:
        """Compiled code begins, or TrainCheck removes its hooks for another reason."""
        if self._is_mine() and self._recording is not None and self._recording.is_on:
            self._recording.turn_off()
            if self._backward is None:  # else TrainCheck replays a step after a backward that creates a graph
                self._recording.end("it is compiled")

    def _update_begins(self, *_: Any) -> None:
        if self._is_mine() and self._recording is not None:
            self._recording.turn_off()

    def _note_hook(self, tensor: torch.Tensor) -> None:
        if self._recording is not None and not tensor.is_leaf and not _is_called_by_torch():
            self._hooked = True

    def _no_grad_begins(self, manager: Any) -> None:
        recording = self._recording
        if recording is not None and manager.prev is False and recording.is_on and not _is_called_by_torch():
            recording.nested_no_grad = True

    # -- the backward ----------------------------------------------------------------------------------------------

    def _grad_begins(self, outputs: Any, inputs: Any, *args: Any, **kwargs: Any) -> bool | None:
        recording = self._recording
        creates = kwargs.get("create_graph", args[2] if len(args) > 2 else False)
        if recording is None or creates or not recording.is_on:
            return None
        recording.turn_off()
        return True

    def _resume(self, *_: Any) -> None:
        if self._is_mine() and self._recording is not None:
            self._recording.turn_on()

    def _backward_begins(
        self,
        tensors: Any,
        grad_tensors: Any = None,
        retain_graph: bool | None = None,
        create_graph: bool = False,
        grad_variables: Any = None,
        inputs: Any = None,
    ) -> _Backward | None:
        recording = self._recording
        if recording is None:
            return None
        roots = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
        weights = [grad_tensors] if isinstance(grad_tensors, torch.Tensor) else list(grad_tensors or ())
        with hidden_from_modes():
            sources = () if recording.failed else [recording.source_of(root) for root in roots]
            losses = [root.detach().clone() for root in roots]
        if not create_graph:
            recording.turn_off()
        if recording.failed:
            self._undecide(self._model, recording.failed)
            self._on_detach()
            return None
        if self._verified >= MAX_BACKWARDS:
            self._on_detach()
            return None
        self._verified += 1
        try:
            computation = recording.tape.computation(sources)
        except CannotExecute as error:
            self._undecide(self._model, str(error))
            if not create_graph:
                self._resume()
            return None
        subject = self._subject(computation)
        objective = Objective(computation, [*weights, *[None] * (len(roots) - len(weights))])
        backward = _Backward(objective, losses, subject, not (create_graph if retain_graph is None else retain_graph))
        only = None if inputs is None else {id(tensor) for tensor in flat_tensors(inputs)}
        for leaf in computation.leaves:
            if leaf.requires_grad and not _has_own_hooks(leaf._backward_hooks) and (only is None or id(leaf) in only):
                backward.gradients[id(leaf)] = None
                hook = functools.partial(_add, backward.gradients, id(leaf))
                backward.undo.callback(register_leaf_hook(leaf, self._recorder.guarded(self.name, hook)))
        self._backward = backward
        return backward

    def _backward_ends(self, backward: _Backward) -> None:
        self._backward = None
        backward.undo.close()
        recording = self._recording
        if recording is None:
            return
        recording.turn_off()
        computation = backward.objective.computation
        if self._undecided.get(backward.subject, 0) < MAX_UNDECIDED:
            with self._recorder.hooks.suspended(), without_modes(), _random_states_of_the_program(computation):
                self._verify(backward, recording)
        if backward.drops:
            recording.drop(computation)
        if not recording.tape.is_empty:
            recording.turn_on()

    def _subject(self, computation: Computation) -> str:
        call = next((entry.call for entry in computation.entries if entry.call is not None), None)
        while call is not None and call.parent is not None:
            call = call.parent
        module = None if call is None else call.living
        return self._model if module is None else self._catalog.model_name(module)

    def _named(self, call: ModuleCall | None, subject: str) -> str:
        """The name of the module that a call is of; `subject` if it is unknown."""
        module = None if call is None else call.living
        return subject if module is None else self._catalog.module_name(module)

    def _verify(self, backward: _Backward, recording: TapeRecording) -> None:
        subject, computation = backward.subject, backward.objective.computation
        try:
            _check_memory(computation, recording.result_bytes)
            differs = difference(backward.objective, backward.losses, self._expected(backward))
            if differs is None and self._blames_kernel(computation, subject):
                return
        except (CannotDecide, CannotExecute) as error:
            if not (isinstance(error, Unexplained) and self._blames_kernel(computation, subject)):
                self._undecide(subject, str(error), lasts=not isinstance(error, NotFinite))
            return
        except Exception as error:
            calls_program = any(function.has_kernel for function in functions_of(computation))
            if not isinstance(error, RuntimeError) and not calls_program:  # torch raises it where memory is short
                raise
            self._undecide(subject, f"it raised {type(error).__name__}: {first_line(error)}")
            return
        if differs is None:
            self._undecided[subject] = 0
            if self._suspicion is not None and self._suspicion.subject == subject:
                self._report_suspicion()
            self._reporter.report(subject, AGREES)
            return
        self._explain(backward, differs, recording)

    def _expected(self, backward: _Backward) -> dict[int, torch.Tensor | None]:
        """The gradients that arrived, and None for each parameter without one.

        Other leaves get none where a custom function makes them in its forward: an adjoint solver asks for a gradient
        in the time of each evaluation.
        """
        leaves = backward.objective.computation.leaves
        known = {id(leaf) for leaf in leaves if self._catalog.find(leaf) is not None}
        return {key: grad for key, grad in backward.gradients.items() if grad is not None or key in known}

    def _undecide(self, subject: str, reason: str, *, lasts: bool = True) -> None:
        """Report that there is no result. A reason that `lasts` counts as a failed attempt."""
        self._undecided[subject] = self._undecided.get(subject, 0) + lasts
        self._reporter.report(subject, UNDECIDED, reason)

    # -- the cause -------------------------------------------------------------------------------------------------

    def _explain(self, backward: _Backward, differs: Difference, recording: TapeRecording) -> None:
        objective, subject = backward.objective, backward.subject
        if self._hooked or any(map(_has_program_hooks, modules_of(objective.computation).values())):
            return self._undecide(subject, "its gradients pass hooks of the program")
        functions = functions_of(objective.computation)
        if recording.nested_no_grad and any(function.transparent for function in functions):
            return self._undecide(subject, "it uses no_grad under reentrant checkpointing")
        found = differs.describe(self._name(differs.leaves[0]))
        for function in functions:
            judge = judge_kernel if function.has_kernel else judge_backward
            verdict = judge(objective.computation, function)
            if verdict is Backward.CHOSEN:
                reason = f"the backward of {function.cls.__name__} may replace a derivative on purpose"
                return self._undecide(subject, reason)
            if verdict is Backward.APPROXIMATE:
                reason = f"the backward of {function.cls.__name__} differentiates on its own, and may approximate"
                return self._undecide(subject, reason)
            if verdict is Backward.WRONG:
                return self._blame(function, subject, found)
        writer = next((function for function in functions if function.overwrites), None)
        if writer is not None:
            found += f"; the backward of {writer.cls.__name__} overwrites the gradient that it gets"
            return self._blame(writer, subject, found)
        call = common_call(calls_of(objective.computation, differs.leaves))
        first = self._named(call, subject)
        if self._boundaries:
            arrived = [Boundary(call, source.value, grads[-1]) for call, source, grads in self._boundaries if grads]
            located = wrong_call(objective, arrived)
            first = self._named(located, first)
            self._suspicion = None
            return self._reporter.report(subject, DISAGREES, found, first=first)
        self._follows = True
        self._suspicion = self._suspicion or _Suspicion(self._step, subject, found, first)
        return None

    def _blames_kernel(self, computation: Computation, subject: str) -> bool:
        """Report the first function with a kernel whose backward is wrong. The derivative of the tape contains that
        backward, so it shows no difference."""
        for function in kernels_of(computation):
            if judge_kernel(computation, function) is Backward.WRONG:
                self._blame(function, subject, "its backward returns another gradient than its forward implies")
                return True
        return False

    def _blame(self, function: CustomFunction, subject: str, found: str) -> None:
        self._suspicion = None
        file = function.site.rpartition(":")[0] or function.site
        where = f" ({file})" if file else ""
        first = f"function {function.cls.__name__}{where}"
        self._reporter.report(subject, DISAGREES, found, first=first, site=function.site)

    def _report_suspicion(self) -> None:
        """Report a difference that no later step located."""
        suspicion, self._suspicion = self._suspicion, None
        if suspicion is not None:
            self._reporter.report(suspicion.subject, DISAGREES, suspicion.found, first=suspicion.first)

    def _name(self, leaf: torch.Tensor) -> str:
        variable = self._catalog.find(leaf)
        return "a tensor" if variable is None else variable.name


@contextmanager
def _random_states_of_the_program(computation: Computation) -> Iterator[None]:
    """Restore the random states afterwards, if the verification may call a custom function or its backward."""
    states = RandomStates() if any(function.has_kernel for function in functions_of(computation)) else None
    try:
        yield
    finally:
        if states is not None:
            states.restore()


def _check_memory(computation: Computation, results: int) -> None:
    """Raise CannotDecide where an execution in double precision may not fit."""
    leaves = computation.leaves
    needed = 3 * sum(8 * leaf.numel() for leaf in leaves) + results
    if leaves and needed > MEMORY_SHARE * available_memory(leaves[0].device):
        raise CannotDecide("it needs too much memory")


def _add(gradients: dict[int, torch.Tensor | None], key: int, grad: torch.Tensor | None) -> None:
    if grad is not None and not _in_autograd_grad():
        with hidden_from_modes():
            before = gradients[key]
            gradients[key] = grad.detach().clone() if before is None else before + grad.detach()


def _in_autograd_grad() -> bool:
    """Whether a call of `torch.autograd.grad` computes the gradient, which a custom function makes in its backward
    (adjoint methods): it adds nothing to the gradient of the leaf. Call in a hook."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename != torch.autograd.__file__:
        frame = frame.f_back
    return frame is not None and frame.f_code.co_name == "grad"


def _keep(arrived: list[torch.Tensor], grad: torch.Tensor | None) -> None:
    if grad is not None:
        arrived.append(grad.detach())


def _has_program_hooks(module: nn.Module) -> bool:
    tables = (
        module._backward_hooks,
        module._backward_pre_hooks,
        nn.modules.module._global_backward_hooks,
        nn.modules.module._global_backward_pre_hooks,
    )
    return any(map(_has_own_hooks, tables))


def _has_own_hooks(table: Any) -> bool:
    """Whether a table of hooks has one of the program, which may change gradients."""
    return any(not is_torch_hook(hook) and not _is_our_hook(hook) for hook in (table or {}).values())


def _is_our_hook(hook: Any) -> bool:
    return str(getattr(getattr(hook, "func", hook), "__module__", "")).startswith("traincheck.sources.")


def _is_called_by_torch() -> bool:
    """Whether torch or TrainCheck, and not the program, called the function of torch under way."""
    frame: FrameType | None = sys._getframe(1)
    home = "traincheck.sources."
    while frame is not None and home.startswith("traincheck.sources."):
        frame = frame.f_back
        home = "" if frame is None else str(frame.f_globals.get("__name__"))
    return home.startswith(("torch.", "traincheck."))
