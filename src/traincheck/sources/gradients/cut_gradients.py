"""Finds parameters that an optimizer holds and that `detach` cuts off from every loss.

A module is called with gradients on, its parameters have no gradient when their optimizer steps first, and the program
detaches a tensor that was computed from them. So what follows does not train them. TrainCheck looks for the detaching
line between the first and the second step of the optimizer, and only if there are such parameters.

Only lines of the project count, because TrainCheck and libraries detach tensors to read them. A parameter that
something else writes is left out: a target network follows another one. So is a layer whose result nobody uses (a
pooler).
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch

from traincheck.sources.base import replace
from traincheck.sources.gradients.gradients import Gradients
from traincheck.sources.modules.variables import Variable, VariableCatalog
from traincheck.sources.recording.patches import UndoStack
from traincheck.sources.recording.recorder import Recorder
from traincheck.sources.tensors.reading import hidden_from_modes
from traincheck.sources.tensors.storages import version_of
from traincheck.vocab.builtin_rules import CUT_OFF, PARAMETER
from traincheck.vocab.events import NO_CALL, Reading
from traincheck.vocab.facts import facts

MAX_NODES = 5_000
"""Operations of a graph that are looked at for each call of `detach`."""

METHODS = ("detach", "detach_")


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
        self.done: set[str] = set()

    def forget(self) -> None:
        """Judge no optimizer that is between its first and second step."""
        self.done.update(self._suspects)
        self._suspects.clear()
        self._stop()

    def _stop(self) -> None:
        if not self._suspects:
            self._sites.clear()
            self._patches.close()

    def step_ends(self, optimizer: str) -> None:
        """An optimizer that is not done has stepped."""
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
            tensor, site = variable.tensor(), self._sites.get(key)
            if site is None or tensor is None or tensor.grad is not None or version_of(tensor) != version:
                continue
            seq, context = self._recorder.next_seq(), facts(site=site)
            reading = Reading(seq, NO_CALL, variable.name, PARAMETER, CUT_OFF, True, context=context)
            self._recorder.record_reading(reading)

    # -- calls of detach -------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        self._patches = UndoStack()
        for method in METHODS:
            replace(self._patches, torch.Tensor, method, self._noting)

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
            for key in _leaves_of(tensor):
                if any(key in suspects for suspects in self._suspects.values()):
                    self._sites.setdefault(key, sites.above(caller))


def _leaves_of(tensor: torch.Tensor) -> list[int]:
    """The ids of the leaves from which a tensor was computed."""
    waiting: list[Any] = [tensor.grad_fn]
    seen, leaves = set(waiting), []
    while waiting and len(seen) < MAX_NODES:
        node = waiting.pop()
        leaf = getattr(node, "variable", None)
        if leaf is not None:
            leaves.append(id(leaf))
        for before, _ in node.next_functions:
            if before is not None and before not in seen:
                seen.add(before)
                waiting.append(before)
    return leaves
