"""Source `autograd`: backward passes and the gradients they leave."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any, NamedTuple

import torch

from traincheck.sources.base import replace, wrapping
from traincheck.sources.circumstances import Surroundings, circumstances_with
from traincheck.sources.gradients import Gradients, Snapshot, summary
from traincheck.sources.names import parameter_names
from traincheck.sources.recorder import OpenCall, Recorder
from traincheck.sources.summaries import Asked, Before, Summaries, asked
from traincheck.sources.tensors import unseen
from traincheck.vocab.demand import Demand
from traincheck.vocab.events import LIFECYCLE
from traincheck.vocab.facts import Facts

BACKWARD = ("torch.autograd.backward",)
GRAD = ("torch.autograd.grad",)
PARAMETER_GRAD = "parameter.grad"


class _Open(NamedTuple):
    """A backward under way: the gradients and its arguments as they were."""

    call: OpenCall
    gradients: Snapshot | None
    asked: Asked | None
    before: Before | None


class AutogradSource:
    """Observes `torch.autograd.backward` (which `Tensor.backward` calls) and `torch.autograd.grad`."""

    name = "autograd"

    def __init__(self, gradients: Gradients, summaries: Summaries, surroundings: Surroundings) -> None:
        self._gradients = gradients
        self._summaries = summaries
        self._surroundings = surroundings

    def offers(self) -> str | None:
        return None

    def attach(self, demand: Demand, recorder: Recorder) -> ExitStack:
        self._recorder = recorder
        self._states = demand.wants_state(BACKWARD, PARAMETER_GRAD) or demand.wants_state(
            ("torch.optim.Optimizer.step",), PARAMETER_GRAD
        )
        self._states = self._states or demand.wants_state(("torch.optim.Optimizer.step",), "parameter.data")
        self._calls = self._states or demand.wants_call(BACKWARD)
        self._asked: dict[tuple[str, ...], Asked | None] = {
            levels: asked(demand, levels, parameter_names(function))
            for levels, function in ((BACKWARD, torch.autograd.backward), (GRAD, torch.autograd.grad))
        }
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

    def _begins(self, *args: Any, **kwargs: Any) -> _Open | None:
        recorder = self._recorder
        recorder.steps.backward(recorder.next_seq())
        self._gradients.backward_begins()
        if not self._calls:
            return None
        snapshot = None
        grads = "none"
        if self._states:
            with unseen():
                snapshot = self._gradients.read(self._gradients.trainable(), values=True)
            grads = summary(snapshot.states)
        retain_graph, create_graph = _graph_flags(*args, **kwargs)
        context = circumstances_with(
            grads=grads, retain_graph=retain_graph, create_graph=create_graph, within=self._surroundings.within
        )
        return self._enter(BACKWARD, context, snapshot, args, kwargs)

    def _grad_begins(self, *args: Any, **kwargs: Any) -> _Open:
        context = circumstances_with(create_graph=bool(kwargs.get("create_graph")), within=self._surroundings.within)
        return self._enter(GRAD, context, None, args, kwargs)

    def _enter(
        self, levels: tuple[str, ...], context: Facts, snapshot: Snapshot | None, args: Any, kwargs: Any
    ) -> _Open:
        call = self._recorder.enter(LIFECYCLE, levels, "", context)
        what = self._asked[levels]
        before = self._summaries.begins(call, what, args, kwargs) if what is not None else None
        return _Open(call, snapshot, what, before)

    def _ends(self, opened: _Open, result: Any) -> None:
        call, snapshot, what, before = opened
        if snapshot is not None:
            with unseen():
                self._gradients.compare(snapshot, call.seq)
        if what is None:
            self._recorder.leave(call)
        else:
            self._recorder.leave(call, self._summaries.ends(call, what, before, result))

    def _failed(self, opened: _Open) -> None:
        self._recorder.abandon(opened.call)


def _graph_flags(
    tensors: Any = None,
    grad_tensors: Any = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    *args: Any,
    **kwargs: Any,
) -> tuple[bool, bool]:
    """retain_graph and create_graph, as `torch.autograd.backward` was given them."""
    return bool(retain_graph), bool(create_graph)
