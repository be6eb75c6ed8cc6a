"""Source `autograd`: backward passes and the gradients they leave."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import torch

from traincheck.sources.base import replace, wrapping
from traincheck.sources.circumstances import circumstances_with
from traincheck.sources.gradients import Gradients, Snapshot, summary
from traincheck.sources.recorder import OpenCall, Recorder
from traincheck.sources.tensors import unseen
from traincheck.vocab.demand import Demand
from traincheck.vocab.events import LIFECYCLE

BACKWARD = ("torch.autograd.backward",)
GRAD = ("torch.autograd.grad",)
PARAMETER_GRAD = "parameter.grad"


class AutogradSource:
    """Observes `torch.autograd.backward` (which `Tensor.backward` calls) and `torch.autograd.grad`."""

    name = "autograd"

    def __init__(self, gradients: Gradients) -> None:
        self._gradients = gradients

    def offers(self) -> str | None:
        return None

    def attach(self, demand: Demand, recorder: Recorder) -> ExitStack:
        self._recorder = recorder
        self._states = demand.wants_state(BACKWARD, PARAMETER_GRAD) or demand.wants_state(
            ("torch.optim.Optimizer.step",), PARAMETER_GRAD
        )
        self._calls = self._states or demand.wants_call(BACKWARD)
        undo = ExitStack()
        guarded = recorder.guarded
        replace(
            undo,
            torch.autograd,
            "backward",
            wrapping(
                guarded(self.name, self._begins), guarded(self.name, self._ends), guarded(self.name, self._failed)
            ),
        )
        if demand.wants_call(GRAD):
            replace(
                undo,
                torch.autograd,
                "grad",
                wrapping(
                    guarded(self.name, self._grad_begins),
                    guarded(self.name, self._ends),
                    guarded(self.name, self._failed),
                ),
            )
        return undo

    def _begins(
        self,
        tensors: Any = None,
        grad_tensors: Any = None,
        retain_graph: bool | None = None,
        create_graph: bool = False,
        *args: Any,
        **kwargs: Any,
    ) -> tuple[OpenCall, Snapshot | None] | None:
        recorder = self._recorder
        recorder.steps.backward(recorder.next_seq())
        if not self._calls:
            return None
        snapshot = None
        grads = "none"
        if self._states:
            with unseen():
                snapshot = self._gradients.read(self._gradients.trainable(), values=True)
            grads = summary(snapshot.states)
        context = circumstances_with(
            grads=grads,
            retain_graph=bool(retain_graph),
            create_graph=bool(create_graph),
        )
        return recorder.enter(LIFECYCLE, BACKWARD, "", context), snapshot

    def _grad_begins(self, *args: Any, **kwargs: Any) -> tuple[OpenCall, Snapshot | None]:
        context = circumstances_with(create_graph=bool(kwargs.get("create_graph")))
        return self._recorder.enter(LIFECYCLE, GRAD, "", context), None

    def _ends(self, token: tuple[OpenCall, Snapshot | None], result: Any) -> None:
        call, snapshot = token
        if snapshot is not None:
            with unseen():
                self._gradients.compare(snapshot, call.seq)
        self._recorder.leave(call)

    def _failed(self, token: tuple[OpenCall, Snapshot | None]) -> None:
        self._recorder.abandon(token[0])
