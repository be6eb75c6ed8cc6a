"""Finds optimizers that step again with the gradients of their last step.

The first gradient of an optimizer is the same tensor as in its last step, and nothing has written to it. So no backward
ran, and the program has set no gradients of its own. TrainCheck reports it at once on a CPU. A CUDA graph writes to
gradients without a sign. So on an accelerator, TrainCheck reports it only after a backward that it saw.

An optimizer whose step gets a closure computes its gradients within the step.
"""

from __future__ import annotations

from typing import Any

import torch

from traincheck.sources.optimizers.hyperparameters import OPTIMIZER
from traincheck.sources.recording.patches import TensorReference
from traincheck.sources.recording.recorder import Recorder
from traincheck.sources.tensors.storages import version_of
from traincheck.vocab.builtin_rules import REUSED
from traincheck.vocab.events import Reading


class ReusedGradients:
    """Follows the first gradient of each optimizer from step to step."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._used: dict[str, tuple[TensorReference, int | None, int]] = {}  # with version and backwards
        self._waiting: dict[str, tuple[int, int]] = {}  # by optimizer: the step that used it again, and the backwards
        self._reported: set[str] = set()

    def forget(self) -> None:
        """Drop all gradients, because steps were not observed."""
        self._used.clear()
        self._waiting.clear()

    def step_begins(self, optimizer: Any, name: str, call: int, backwards: int, closure: bool) -> None:
        """A step begins, at the position `call`, after so many backwards. Call under `hidden_from_modes`."""
        if name in self._reported:
            return
        waiting = self._waiting.pop(name, None)
        if waiting is not None and backwards > waiting[1]:
            self._report(name, waiting[0])
        gradient = None if closure else _first_gradient(optimizer)
        if gradient is None:
            self._used.pop(name, None)
            return
        version = version_of(gradient)
        used, *before = self._used.get(name, (None, None, -1))
        is_same = used is not None and used() is gradient and version is not None and before == [version, backwards]
        if not is_same:
            self._used[name] = TensorReference(gradient), version, backwards
        elif gradient.is_cpu:
            self._report(name, call)
        else:
            self._waiting[name] = call, backwards

    def _report(self, name: str, call: int) -> None:
        self._reported.add(name)
        self._recorder.record_reading(Reading(self._recorder.next_seq(), call, name, OPTIMIZER, REUSED, True))


def _first_gradient(optimizer: Any) -> torch.Tensor | None:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.grad is not None:
                gradient: torch.Tensor = parameter.grad
                return gradient
    return None
