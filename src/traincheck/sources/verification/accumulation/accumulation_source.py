"""Source `accumulations`: compares how much the elements of accumulated micro-batches weigh, in verified steps.

The gradient of a batch does not depend on how the batch is divided only if each of its elements weighs the same. A
mean over each micro-batch gives other weights where micro-batches have different numbers of elements (tokens that are
not masked, say). The losses of one line of the program, reduced by one operation, count as micro-batches of a batch.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from traincheck.sources.base import replace, wrapping
from traincheck.sources.modules.variables import VariableCatalog
from traincheck.sources.recording.patches import UndoStack
from traincheck.sources.recording.recorder import Recorder
from traincheck.sources.verification.accumulation.loss_weights import LossWeights, weights_of
from traincheck.sources.verification.experiment_source import ExperimentSource
from traincheck.sources.verification.verified_steps import VerifiedSteps
from traincheck.vocab.verification import ACCUMULATION, AGREES, DISAGREES, UNDECIDED

PRECISION = 1e-4
"""Relative difference of weights from which they differ; numbers of elements are saved in single precision."""


class AccumulationSource(ExperimentSource):
    """See the module."""

    name = "accumulations"
    experiments = (ACCUMULATION,)

    def __init__(self, catalog: VariableCatalog, steps: VerifiedSteps) -> None:
        super().__init__(steps)
        self._catalog = catalog
        self._step = 0
        self._losses: defaultdict[tuple[str, str], list[LossWeights | None]] = defaultdict(list)

    def _observe(self, undo: UndoStack, recorder: Recorder) -> None:
        begins, judge = recorder.guarded(self.name, self._backward_begins), recorder.guarded(self.name, self._judge)

        def follow(*args: Any, **kwargs: Any) -> None:
            if self._verifies(recorder.steps.window_step) and not recorder.hooks.thread.suspended:
                begins(*args, **kwargs)

        def update_begins(optimizer: Any, args: Any, kwargs: Any) -> None:
            if self._losses and self._step == recorder.steps.window_step:
                judge(optimizer)

        ignore: Callable[..., None] = lambda *_: None  # noqa: E731
        replace(undo, torch.autograd, "backward", wrapping(follow, ignore, ignore))
        recorder.hooks.add(undo, register_optimizer_step_pre_hook(update_begins), update_begins)

    def _on_detach(self) -> None:
        self._losses.clear()

    def _backward_begins(self, tensors: Any, grad_tensors: Any = None, *args: Any, **kwargs: Any) -> None:
        if self._step != self._recorder.steps.window_step:
            self._step = self._recorder.steps.window_step
            self._losses.clear()
        loss = tensors if isinstance(tensors, torch.Tensor) else None
        if loss is None or type(loss) is not torch.Tensor or loss.numel() != 1 or loss.grad_fn is None:
            return
        gradients = grad_tensors if isinstance(grad_tensors, tuple | list) else (grad_tensors,)
        weights = weights_of(loss) if all(gradient is None for gradient in gradients) else None
        self._losses[self._recorder.sites.here(), weights.reduction if weights else ""].append(weights)

    def _judge(self, optimizer: Any) -> None:
        losses = [weights for weights in self._losses.values() if len(weights) > 1]
        sites = [site for (site, _), weights in self._losses.items() if len(weights) > 1]
        self._losses.clear()
        name = self._catalog.add_optimizer(optimizer)
        for site, weights in zip(sites, losses, strict=True):
            verdict, found = judge_weights(weights)
            found = f"in step {self._step}, {found}" if verdict == DISAGREES else found
            self._reporter.report(name, verdict, found, site=site)


def judge_weights(micro_batches: list[LossWeights | None]) -> tuple[str, str]:
    """Return the verdict about the losses of micro-batches, and what was seen."""
    known = [weights for weights in micro_batches if weights is not None]
    if len(known) < len(micro_batches):
        return UNDECIDED, "the graphs of its losses do not show the weights of their elements"
    smallest = min(known, key=lambda weights: abs(weights.weight))
    largest = max(known, key=lambda weights: abs(weights.weight))
    if not abs(smallest.weight - largest.weight) <= PRECISION * abs(largest.weight):
        times = abs(largest.weight / smallest.weight) if smallest.weight else float("inf")
        found = f"an element of a micro-batch of {largest.elements:,g} weighs {times:.3g} times as much as one of a "
        return DISAGREES, f"{found}micro-batch of {smallest.elements:,g}"
    if len({weights.elements for weights in known}) == 1:
        return UNDECIDED, "all of its micro-batches have the same number of elements"
    return AGREES, ""
