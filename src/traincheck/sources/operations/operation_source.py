"""Source `operations`: sketches the operations of watched steps, for `traincheck compare`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from traincheck.sources.base import replace, wrapping
from traincheck.sources.modules.module_calls import ModuleCalls
from traincheck.sources.modules.variables import VariableCatalog
from traincheck.sources.operations.operation_recording import OperationRecording, Variable
from traincheck.sources.operations.whole_values import WholeValues
from traincheck.sources.recording.dispatch_recording import remove_lingering
from traincheck.sources.recording.listener import RecorderListener
from traincheck.sources.recording.patches import UndoStack
from traincheck.sources.recording.recorder import Recorder
from traincheck.sources.recording.step_tracker import Cut
from traincheck.vocab.demand import Demand
from traincheck.vocab.events import TRAIN
from traincheck.vocab.operations import Sketch, StepOperations

_PLAIN = (bool, int, float, str, tuple)
"""Kinds of hyperparameters that are shown."""


class _Backward(NamedTuple):
    """A backward under way, and whether operations were recorded before it."""

    recording: OperationRecording
    goes_on: bool


class _Grad(NamedTuple):
    """A call of `torch.autograd.grad` under way."""

    recording: OperationRecording
    arguments: Any


class OperationSource(RecorderListener):
    """Records the operations of each step from the first call of a module on, and passes them to `keep`.

    It attaches after the source `modules`.
    """

    name = "operations"

    def __init__(
        self,
        calls: ModuleCalls,
        catalog: VariableCatalog,
        keep: Callable[[StepOperations], object],
        whole_values: WholeValues | None = None,
    ) -> None:
        self._calls, self._catalog, self._keep, self._whole_values = calls, catalog, keep, whole_values
        self._recording: OperationRecording | None = None
        self._last: dict[int, Sketch] = {}  # of the step before
        self._goes_on = False  # after the update under way

    def offers(self) -> str | None:
        return (
            None if hasattr(torch.autograd, "_get_sequence_nr") else "this release of torch does not number operations"
        )

    def attach(self, demand: Demand, recorder: Recorder) -> ExitStack:
        undo = UndoStack()
        self._recorder = recorder
        recorder.on_detach(undo, self._stop)
        recorder.add_listener(self)
        guarded = functools.partial(recorder.guarded, self.name)
        start = guarded(self._start)

        def call_begins(module: nn.Module, args: Any) -> None:
            remove_lingering()
            if self._calls.depth == 1 and torch._C._current_graph_task_id() < 0:
                start(module)
            recording = self._mine()
            if recording is not None:
                recording.call_begins(module)

        def call_ends(module: nn.Module, args: Any, output: Any) -> None:
            recording = self._mine()
            if recording is not None:
                recording.call_ends(module)

        self._calls.add_listener(call_begins, call_ends)
        around_backward = wrapping(guarded(self._backward_begins), _end_backward, _end_backward)
        replace(undo, torch.autograd, "backward", around_backward)
        around_grad = wrapping(guarded(self._grad_begins), guarded(self._grad_ends), guarded(self._grad_ends))
        replace(undo, torch.autograd, "grad", around_grad)
        update_begins, update_ends = guarded(self._update_begins), guarded(self._update_ends)
        pre: Callable[..., None] = lambda optimizer, *_: update_begins(optimizer)  # noqa: E731
        post: Callable[..., None] = lambda optimizer, *_: update_ends(optimizer)  # noqa: E731
        recorder.hooks.add(undo, register_optimizer_step_pre_hook(pre), pre)
        recorder.hooks.add(undo, register_optimizer_step_post_hook(post), post)
        recorder.hooks.on_suspend.append(self._suspends)
        undo.callback(recorder.hooks.on_suspend.remove, self._suspends)
        return undo

    def _mine(self) -> OperationRecording | None:
        """The recording of this thread."""
        recording = self._recording
        return recording if recording is not None and recording.is_of_this_thread else None

    def _start(self, module: nn.Module) -> None:
        """Begin or go on with the recording of this step, where operations can be observed."""
        recorder = self._recorder
        step = recorder.steps.window_step
        if not step or not recorder.watching or recorder.hooks.thread.suspended:
            return
        if self._recording is None:
            if recorder.steps.evaluating:
                return
            self._catalog.module_name(module)  # names its parameters
            self._recording = OperationRecording(
                step,
                self._catalog,
                recorder.sites.here,
                lambda: recorder.steps.fetching,
                self._last,
                self._whole_values,
            )
        recording = self._mine()
        if recording is None:
            return
        if recorder.has_compiled_code:
            recording.incomplete = recording.incomplete or "it is compiled"
        elif not recorder.steps.updating:
            recording.turn_on()

    def _suspends(self) -> None:
        """Compiled code begins, or TrainCheck removes its hooks for another reason."""
        recording = self._mine()
        if recording is not None:
            recording.turn_off()

    def _backward_begins(self, tensors: Any, *args: Any, **kwargs: Any) -> _Backward | None:
        recording = self._mine()
        if recording is None:
            return None
        was_on = recording.is_on
        recording.turn_off()
        recording.backward_begins([tensors] if isinstance(tensors, torch.Tensor) else list(tensors))
        return _Backward(recording, was_on)

    def _grad_begins(self, outputs: Any, inputs: Any, *args: Any, **kwargs: Any) -> _Grad | None:
        recording = self._mine()
        if recording is None or not recording.is_on:
            return None
        recording.turn_off()
        return _Grad(recording, (outputs, inputs))

    def _grad_ends(self, grad: _Grad, result: Any = None) -> None:
        grad.recording.add_call("autograd.grad", grad.arguments, result)
        grad.recording.turn_on()

    def _update_begins(self, optimizer: torch.optim.Optimizer) -> None:
        recording = self._mine()
        if recording is not None:
            self._goes_on = recording.is_on
            recording.turn_off()
            recording.add_gradients(self._held(optimizer))

    def _update_ends(self, optimizer: torch.optim.Optimizer) -> None:
        recording = self._mine()
        if recording is not None:
            recording.add_update(f"{type(optimizer).__name__}.step", self._held(optimizer))
            if self._goes_on:
                recording.turn_on()

    def _held(self, optimizer: torch.optim.Optimizer) -> list[Variable]:
        """The parameters of an optimizer, with their hyperparameters."""
        name = self._catalog.add_optimizer(optimizer)
        held = []
        for number, group in enumerate(optimizer.param_groups):
            settings = ", ".join(f"{key}={value}" for key, value in group.items() if isinstance(value, _PLAIN))
            for index, parameter in enumerate(group["params"]):
                known = self._catalog.find(parameter)
                held.append(
                    Variable(known.name if known else f"{name}.param_groups[{number}][{index}]", parameter, settings)
                )
        return held

    def window_closing(self, cut: Cut) -> None:
        recording, self._recording = self._recording, None
        if recording is not None and cut.stage == TRAIN:
            self._keep(recording.finish())
            self._last = recording.sketches

    def window_closed(self, cut: Cut) -> None:
        self._stop()

    def _stop(self) -> None:
        recording, self._recording = self._recording, None
        if recording is not None:
            recording.turn_off()
            recording.remove_hooks()
        remove_lingering()


def _end_backward(backward: _Backward, result: Any = None) -> None:
    backward.recording.backward_ends()
    if backward.goes_on:
        backward.recording.turn_on()
