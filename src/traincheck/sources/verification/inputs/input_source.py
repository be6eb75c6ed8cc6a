"""Source `inputs`: executes calls of models again with changed inputs, in verified steps.

It captures the first call of each model in such a step, and executes it after the backward through its output, as
replays do (see Note [Which call is replayed]). input_changes.py changes the inputs, changed_calls.py judges.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections import defaultdict, deque
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.data.dataloader import _BaseDataLoaderIter

from traincheck.sources.base import replace, wrapping
from traincheck.sources.modules.live_modules import has_parameters
from traincheck.sources.modules.module_calls import ModuleCalls
from traincheck.sources.modules.modules import keywords_of_call
from traincheck.sources.modules.variables import VariableCatalog
from traincheck.sources.recording.patches import TensorReference, UndoStack
from traincheck.sources.recording.recorder import Recorder
from traincheck.sources.replay.fingerprints import CannotReplay
from traincheck.sources.replay.state_snapshot import without_modes
from traincheck.sources.verification.experiment_source import ExperimentSource
from traincheck.sources.verification.inputs.changed_calls import ChangedCall
from traincheck.sources.verification.inputs.input_changes import AlignedSequences
from traincheck.sources.verification.inputs.judging import Judgement, judge
from traincheck.sources.verification.inputs.loss_targets import Target, targets_of
from traincheck.sources.verification.verified_steps import VerifiedSteps
from traincheck.vocab.verification import (
    DISAGREES,
    LATER_TOKENS,
    MIXED_SAMPLES,
    NEXT_TOKEN,
    PADDED,
    PADDING,
    PADDING_LOSS,
    SAMPLES,
    UNDECIDED,
)

BATCHES_AHEAD = 64
"""Batches whose samples are chosen, at most, before the model gets the first of them: workers load ahead."""


class InputSource(ExperimentSource):
    """Changes the inputs of the first call of each model in a verified step. It attaches after the source `modules`."""

    name = "inputs"
    experiments = (SAMPLES, MIXED_SAMPLES, LATER_TOKENS, NEXT_TOKEN, PADDED, PADDING, PADDING_LOSS)

    def __init__(self, calls: ModuleCalls, catalog: VariableCatalog, steps: VerifiedSteps) -> None:
        super().__init__(steps)
        self._calls = calls
        self._catalog = catalog
        self._step = 0  # the last verified step
        self._names: set[str] = set()  # of models that were called in it
        self._open: ChangedCall | None = None  # the call under way
        self._called: list[ChangedCall] = []  # calls without a backward so far
        self._hooks = ExitStack()  # on their outputs
        self._targets: list[Target] = []  # of the backward under way
        self._batch_sizes: deque[int] = deque(maxlen=BATCHES_AHEAD)  # samples in the last batches of loaders
        self._sequences: defaultdict[str, AlignedSequences] = defaultdict(AlignedSequences)  # by model
        self._thread = 0
        self._inputs: weakref.WeakKeyDictionary[nn.Module, Callable[[], object]] = (
            weakref.WeakKeyDictionary()
        )  # last ones

    def _observe(self, undo: UndoStack, recorder: Recorder) -> None:
        capture, returned = self._guarded(self._capture), self._guarded(self._returned)
        release = recorder.guarded(self.name, self._on_detach, always=True)
        note_input = recorder.guarded(self.name, self._note_input)

        def begins(module: nn.Module, args: Any) -> None:
            if self._called and recorder.steps.window_step != self._step:
                release()
            if self._is_verified(module):
                capture(module, args)
            note_input(module, args)

        def ends(module: nn.Module, args: Any, output: Any) -> None:
            call = self._open
            if call is not None and module is call.call.outermost and threading.get_ident() == self._thread:
                returned(output)

        self._calls.add_listener(begins, ends, outermost=True)
        verify, read_targets = self._guarded(self._verify), self._guarded(self._read_targets)

        def follow(tensors: Any, *args: Any, **kwargs: Any) -> bool | None:
            if not self._called:
                return None
            read_targets(tensors)
            return True

        replace(undo, torch.autograd, "backward", wrapping(follow, lambda token, _: verify(), lambda token: None))
        note_samples = recorder.guarded(self.name, self._note_samples)
        replace(
            undo,
            _BaseDataLoaderIter,
            "_next_index",
            wrapping(lambda iterator: True, lambda token, chosen: note_samples(chosen), lambda token: None),
        )

    def _guarded(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def quiet(*args: Any) -> None:
            with without_modes():
                function(*args)

        return self._recorder.guarded(self.name, quiet)

    def _is_verified(self, module: nn.Module) -> bool:
        recorder = self._recorder
        return (
            module.training
            and self._verifies(recorder.steps.window_step)
            and torch.is_grad_enabled()
            and torch._C._get_tracing_state() is None
            and torch._C._current_graph_task_id() < 0  # a backward recomputes it
            and recorder.hooks.in_one_thread  # all threads share the random streams
        )

    def _note_input(self, module: nn.Module, args: Any) -> None:
        tensor = next((argument for argument in args if isinstance(argument, torch.Tensor)), None)
        if tensor is not None:
            self._inputs[module] = TensorReference(tensor)

    def _note_samples(self, chosen: Any) -> None:
        if isinstance(chosen, list | tuple):  # a loader without batches chooses one index
            self._batch_sizes.append(len(chosen))

    def _capture(self, module: nn.Module, args: Any) -> None:
        step = self._recorder.steps.window_step
        if step != self._step:
            self._step = step
            self._names.clear()
            self._on_detach()
        self._open = None
        name = self._catalog.module_name(module)
        if name in self._names or not has_parameters(module):
            return
        self._names.add(name)
        self._thread = threading.get_ident()
        try:
            last = self._inputs.get(module)
            same = last is not None and any(last() is argument for argument in args)
            sizes = frozenset(self._batch_sizes)
            self._open = ChangedCall(name, module, args, keywords_of_call(self._recorder), same, sizes)
        except CannotReplay as error:
            self._reporters[SAMPLES.name].report(name, UNDECIDED, f"the call cannot be executed again: {error}")
        else:
            self._open.call.site = self._recorder.sites.here()

    def _returned(self, output: Any) -> None:
        call, self._open = self._open, None
        if call is None:
            return
        receives = self._recorder.guarded(self.name, call.receives)
        tensors = call.returns(output)
        if tensors:
            self._called.append(call)
        for index, tensor in tensors:
            self._hooks.callback(tensor.register_hook(partial(receives, index)).remove)

    def _read_targets(self, tensors: Any) -> None:
        losses = tensors if isinstance(tensors, list | tuple) else (tensors,)
        self._targets = [
            target for loss in losses if isinstance(loss, torch.Tensor) and loss.grad_fn for target in targets_of(loss)
        ]

    def _verify(self) -> None:
        if threading.get_ident() != self._thread:
            return
        targets, self._targets = self._targets, []
        ready = [call for call in self._called if call.has_gradients]
        if not ready:
            return
        self._called = [call for call in self._called if call not in ready]
        if not self._called:
            self._hooks.close()
        for call in ready:
            judgements: list[Judgement] = []
            failed = ""
            try:
                with self._recorder.hooks.suspended():
                    sequences = self._sequences[call.call.name]
                    judgements += judge(call, sequences, targets) if call.call.unchanged else ()
            except CannotReplay as error:
                failed = f"the call cannot be executed again: {error}"
            for experiment, verdict, found, first in judgements:
                text = f"in step {self._step}, {found}" if verdict == DISAGREES else found
                reporter = self._reporters[experiment.name]
                reporter.report(call.call.name, verdict, text, first=first, site=call.call.site)
            if failed:
                self._reporters[SAMPLES.name].report(call.call.name, UNDECIDED, failed)

    def _on_detach(self) -> None:
        self._open = None
        self._called.clear()
        self._targets.clear()
        self._hooks.close()
