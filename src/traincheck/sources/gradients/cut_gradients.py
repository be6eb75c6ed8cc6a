"""Finds parameters that an optimizer holds and that get no gradient from any loss that depends on them.

A module is called with gradients on, and its parameters have no gradient when their optimizer steps first. There are
three signs that something cuts them off from a loss:

* the program detaches a tensor that was computed from them;
* the graph of the loss contains them, and the backward of a custom `autograd.Function` returns no gradient for them;
* the bias of a layer has no gradient although its weight has one, or the reverse. The layer computes a sum of what
  depends on either, so a kernel or a tensor subclass has replaced its computation and left one of them out. A loss of
  the derivative of a model (an energy, a gradient penalty) depends on the weight alone, so this sign does not count if
  the program differentiates inside the graph of a loss. A call says so, or else the names of operations: some, such
  as SiLU, have a derivative of common operations.

So what follows does not train them. TrainCheck looks for the detaching line or the function between the first and the
second step of the optimizer, and only if there are such parameters.

Of calls of `detach`, only lines of the project count, because TrainCheck and libraries detach tensors to read them. A
parameter that something else writes is left out: a target network follows another one. So is a layer whose result
nobody uses (a pooler).
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch.autograd import forward_ad
from torch.autograd.function import BackwardCFunction

from traincheck.sources.base import replace
from traincheck.sources.gradients.gradients import Gradients
from traincheck.sources.modules.variables import Variable, VariableCatalog
from traincheck.sources.recording.call_sites import qualified_name
from traincheck.sources.recording.frames import code_of
from traincheck.sources.recording.patches import UndoStack
from traincheck.sources.recording.recorder import Recorder
from traincheck.sources.tensors.reading import hidden_from_modes
from traincheck.sources.tensors.storages import version_of
from traincheck.vocab.builtin_rules import CUT_OFF, PARAMETER
from traincheck.vocab.events import NO_CALL, Reading
from traincheck.vocab.facts import facts

MAX_NODES = 5_000
"""Operations of a graph that are looked at for each call of `detach`, or for each loss."""

METHODS = ("detach", "detach_")

_DIFFERENTIATED_TWICE = "BackwardBackward"
"""In the names of operations that are derivatives of derivatives."""

AFFINE_LAYERS = (nn.Linear, nn.LayerNorm, nn.GroupNorm, nn.modules.conv._ConvNd, nn.modules.batchnorm._NormBase)
"""Layers with a weight and a bias."""


class CutGradients:
    """Follows each optimizer up to its second step; `done` are the names of those that were judged."""

    def __init__(self, source: str, catalog: VariableCatalog, gradients: Gradients, recorder: Recorder) -> None:
        self._catalog = catalog
        self._gradients = gradients
        self._recorder = recorder
        self._note = recorder.guarded(source, self._note_detached)
        self._patches = UndoStack()
        self._suspects: dict[str, dict[int, tuple[Variable, int | None]]] = {}  # by optimizer and id of the parameter
        self._sites: dict[int, str] = {}  # by id of a suspect: where something computed from it was detached
        self._functions: dict[int, type] = {}  # by id of a suspect: the custom function between it and a loss
        self.done: set[str] = set()

    def forget(self) -> None:
        """Judge no optimizer that is between its first and second step."""
        self.done.update(self._suspects)
        self._suspects.clear()
        self._stop()

    def leave(self) -> None:
        """Remove what observes the program: until `resume` if sources are attached again, otherwise for good."""
        if self._recorder.reattaching:
            self._patches.close()
            self._gradients.on_loss = None
        else:
            self.forget()

    def resume(self) -> None:
        """Go on after `leave`."""
        if self._suspects:
            self._begin()

    def _stop(self) -> None:
        if not self._suspects:
            self._sites.clear()
            self._functions.clear()
            self._patches.close()
            self._gradients.on_loss = None

    def step_ends(self, optimizer: str) -> None:
        """An optimizer that is not done has stepped."""
        if self._suspects:
            self._drop_gone()
        suspects = self._suspects.pop(optimizer, None)
        if suspects is None:
            suspects = self._without_gradient(optimizer)
            if suspects:
                if not self._suspects:
                    self._begin()
                self._suspects[optimizer] = suspects
                return
        else:
            self._judge(suspects)
            self._stop()
        self.done.add(optimizer)

    def _drop_gone(self) -> None:
        """Wait no longer for the second step of optimizers that are gone."""
        living = {name for name, _ in self._catalog.optimizers()}
        self._suspects = {name: suspects for name, suspects in self._suspects.items() if name in living}
        self._stop()

    def _without_gradient(self, optimizer: str) -> dict[int, tuple[Variable, int | None]]:
        """The parameters of called modules that only this optimizer holds, and that have no gradient."""
        return {
            id(tensor): (variable, version_of(tensor))
            for variable, tensor in self._catalog.living()
            if variable.holders == {optimizer} and not variable.graded and tensor.requires_grad
            if tensor.is_leaf and tensor.grad is None and self._gradients.was_called(variable)
        }

    def _judge(self, suspects: dict[int, tuple[Variable, int | None]]) -> None:
        for key, (variable, version) in suspects.items():
            tensor, site, function = variable.tensor(), self._sites.get(key), self._functions.get(key)
            if tensor is None or tensor.grad is not None or variable.graded or version_of(tensor) != version:
                continue
            if function is not None:
                site, reason = self._site_of(function), f"{function.__name__}.backward returns none for them"
            elif site is not None:
                reason = "a tensor computed from them was detached there"
            elif not self._gradients.differentiates and (partner := self._graded_partner(variable)):
                reason = f"the {partner} of the same layer has one"
            else:
                continue
            seq, context = self._recorder.next_seq(), facts(site=site) if site else ()
            reading = Reading(seq, NO_CALL, variable.name, PARAMETER, CUT_OFF, reason, context=context)
            self._recorder.record_reading(reading)

    def _graded_partner(self, variable: Variable) -> str:
        """`weight` or `bias`: the other parameter of the same layer, if it has a gradient of its own."""
        module = None if variable.module is None else variable.module()
        if not isinstance(module, AFFINE_LAYERS):
            return ""
        partner = "weight" if variable.name.endswith(".bias") else "bias"
        other = None if (tensor := module._parameters.get(partner)) is None else self._catalog.find(tensor)
        return partner if other is not None and other.graded and len(other.aliases) <= 1 else ""

    # -- calls of detach -------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        self._patches = UndoStack()
        for method in METHODS:
            replace(self._patches, torch.Tensor, method, self._noting)
        replace(self._patches, forward_ad, "make_dual", self._noting_tangents)
        self._gradients.on_loss = self._look_at_losses

    def _noting(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def detach(*args: Any, **kwargs: Any) -> Any:
            if args and not torch.compiler.is_compiling():
                self._note(args[0], sys._getframe(1))
            return function(*args, **kwargs)

        return detach

    def _note_detached(self, tensor: Any, caller: FrameType) -> None:
        sites = self._recorder.sites
        with hidden_from_modes():
            if type(tensor) is not torch.Tensor or tensor.grad_fn is None or not sites.file_of(caller.f_code):
                return
            for node, _ in _nodes_of(tensor):
                key = id(getattr(node, "variable", None))
                if any(key in suspects for suspects in self._suspects.values()):
                    self._sites.setdefault(key, sites.above(caller))

    # -- derivatives in a loss --------------------------------------------------------------------------------------

    def _noting_tangents(self, make: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(make)
        def make_dual(*args: Any, **kwargs: Any) -> Any:
            self._gradients.differentiates = True
            return make(*args, **kwargs)

        return make_dual

    # -- custom functions ------------------------------------------------------------------------------------------

    def _look_at_losses(self, tensors: Any) -> None:
        losses = tensors if isinstance(tensors, list | tuple) else (tensors,)
        with hidden_from_modes():
            for loss in losses:
                for node, function in _nodes_of(loss) if isinstance(loss, torch.Tensor) else ():
                    self._gradients.differentiates |= _DIFFERENTIATED_TWICE in node.name()
                    key = id(getattr(node, "variable", None))
                    if function is not None and any(key in suspects for suspects in self._suspects.values()):
                        self._functions.setdefault(key, function)

    def _site_of(self, function: type) -> str:
        """Where the project defines the backward of a custom function; empty for those of libraries."""
        code = code_of(getattr(function, "backward", None))
        file = "" if code is None else self._recorder.sites.file_of(code)
        return f"{file}:{code.co_firstlineno}:{qualified_name(code)}" if code is not None and file else ""


def _nodes_of(tensor: torch.Tensor) -> Iterator[tuple[Any, type | None]]:
    """The nodes of the graph of a tensor, each with the custom function nearest to it on the way, if any."""
    waiting: list[tuple[Any, type | None]] = [] if tensor.grad_fn is None else [(tensor.grad_fn, None)]
    seen = {tensor.grad_fn}
    while waiting and len(seen) < MAX_NODES:
        node, function = waiting.pop()
        if isinstance(node, BackwardCFunction):
            function = getattr(type(node), "_forward_cls", type(node))
        yield node, function
        for before, _ in node.next_functions:
            if before is not None and before not in seen:
                seen.add(before)
                waiting.append((before, function))
