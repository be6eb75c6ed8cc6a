"""Source `round_trip`: does the state that a program saves determine what its model computes and how it is updated?

At a `torch.save` the source looks for states of the model and of optimizers in the saved object. Two questions follow:
* Does the model compute the same outputs with the saved tensors, and with the first values of all state that its calls
  change and the file lacks? The batch is one that the source kept in a verified step.
* Does an optimizer that loads the saved state make the same next update?
It executes nothing if nothing differs: what is saved is then what is live. It judges only states that are *fresh* (see
checkpoints/state_dicts.py), because a program may save its best earlier weights, and only what is in the file.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from traincheck.sources.base import replace_everywhere, wrapping
from traincheck.sources.checkpoints.state_dicts import (
    Candidate,
    fingerprint_pairs,
    is_fresh,
    match_modules,
    members,
    same_memory,
    state_mappings,
    unwrapped,
)
from traincheck.sources.modules.module_calls import ModuleCalls
from traincheck.sources.modules.modules import keywords_of_call
from traincheck.sources.modules.variables import VariableCatalog
from traincheck.sources.recording.patches import UndoStack
from traincheck.sources.recording.recorder import Recorder
from traincheck.sources.replay.state_snapshot import without_modes
from traincheck.sources.tensors.reading import hidden_from_modes
from traincheck.sources.verification.experiment_source import ExperimentSource
from traincheck.sources.verification.round_trips.model_outputs import CannotCompute, CapturedBatch, differ
from traincheck.sources.verification.round_trips.optimizer_updates import (
    CannotCompare,
    differences,
    fits,
    optimizer_states,
    shares_state,
    update_differs,
)
from traincheck.sources.verification.round_trips.unsaved_state import Place, UnsavedState
from traincheck.sources.verification.verified_steps import VerifiedSteps
from traincheck.vocab.verification import AGREES, DISAGREES, ROUND_TRIP, UNDECIDED

MOST_TRIED = 8
"""Differences of an optimizer's state, and places of unsaved state, that are tried one by one."""


class _Model:
    """A model that trains: its unsaved state, and a batch from a verified step."""

    def __init__(self, module: nn.Module) -> None:
        self.module = weakref.ref(module)
        self.unsaved = UnsavedState(module)
        self.batch: CapturedBatch | None = None
        self.reason = "no call of it was verified before the save"


class RoundTripSource(ExperimentSource):
    """See the module. Its memory is bounded by one batch and the first values of unsaved state for each model, and
    while it compares by a copy of the model's tensors (at most 1 GiB)."""

    name = "round_trip"
    experiments = (ROUND_TRIP,)

    def __init__(self, calls: ModuleCalls, catalog: VariableCatalog, steps: VerifiedSteps) -> None:
        super().__init__(steps)
        self._calls, self._catalog = calls, catalog
        self._models: dict[int, _Model] = {}
        self._in_call: _Model | None = None
        self._last_save = 0
        self._thread = 0

    def _observe(self, undo: UndoStack, recorder: Recorder) -> None:
        begin, end = recorder.guarded(self.name, self._call_begins), recorder.guarded(self.name, self._call_ends)

        def begins(module: nn.Module, args: Any) -> None:
            if module.training and torch.is_grad_enabled() and torch._C._get_tracing_state() is None:
                begin(module, args)

        def ends(module: nn.Module, args: Any, output: Any) -> None:
            if self._in_call is not None:
                end()

        self._calls.add_listener(begins, ends, outermost=True)
        saves = recorder.guarded(self.name, self._save_begins)
        around = wrapping(lambda *args, **kwargs: saves(*args, **kwargs), lambda *_: None, lambda _: None)
        replace_everywhere(undo, "torch", "save", around)

    def _on_detach(self) -> None:
        self._models.clear()

    # -- calls of the model ----------------------------------------------------------------------------------------

    def _call_begins(self, module: nn.Module, args: Any) -> None:
        self._in_call = None
        if torch._C._current_graph_task_id() >= 0 or not self._recorder.hooks.in_one_thread:
            return
        inner = module.module if isinstance(module, DistributedDataParallel) else module
        model = self._models.get(id(inner))
        step = self._recorder.steps.window_step
        is_known = model is not None and model.module() is inner
        if is_known and not self._verifies(step):
            return
        keywords = keywords_of_call(self._recorder)
        with self._hidden(), hidden_from_modes():
            if model is None or not is_known:
                self._models = {key: known for key, known in self._models.items() if known.module() is not None}
                model = self._models[id(inner)] = _Model(inner)
            if self._verifies(step):
                self._thread = threading.get_ident()
                try:
                    model.batch = CapturedBatch(inner, args, keywords)
                except CannotCompute as error:
                    model.batch, model.reason = None, str(error)
                model.unsaved.call_begins(inner)
                self._in_call = model

    def _call_ends(self) -> None:
        model, self._in_call = self._in_call, None
        inner = None if model is None else model.module()
        if model is not None and inner is not None:
            with self._hidden(), hidden_from_modes():
                model.unsaved.call_ends(inner)

    # -- saves -----------------------------------------------------------------------------------------------------

    def _save_begins(self, saved: Any = None, *args: Any, **kwargs: Any) -> None:
        saved = kwargs.get("obj", saved)
        step = self._recorder.steps.step
        if not self._thread or threading.get_ident() != self._thread or self._calls.depth:
            return
        if self._last_save and 0 < step - self._last_save < self._steps.every:  # a step may save several files
            return
        site = self._recorder.sites.here()
        with self._hidden():
            with hidden_from_modes():
                fresh = self._fresh_tensors(saved)
            if fresh:
                self._last_save = step
                for model in self._models.values():
                    self._judge_model(model, saved, fresh, site)
            with hidden_from_modes():
                self._judge_optimizers(saved, bool(fresh), site)

    def _fresh_tensors(self, saved: Any) -> dict[int, tuple[torch.Tensor, bool]]:
        """Return the saved value of each live tensor by identity, and whether it equals the live one."""
        candidates = {
            id(part): Candidate(part, members(part))
            for model in (*self._catalog.outermost(), *(model.module() for model in self._models.values()))
            if model is not None
            for part in unwrapped(model)
        }
        found: dict[int, tuple[torch.Tensor, bool]] = {}
        for mapping in state_mappings(saved):
            for state in match_modules(mapping, list(candidates.values()))[0]:
                pairs = list(state.pairs())
                prints = fingerprint_pairs(pairs)
                held = [pair.member.tensor.requires_grad for pair in pairs]
                if not is_fresh(pairs, held, prints):
                    continue
                for pair, (live, other) in zip(pairs, prints, strict=True):
                    if isinstance(pair.other, torch.Tensor) and live is not None and other is not None:
                        equal = live == other or same_memory(pair.member.tensor, pair.other)
                        found.setdefault(id(pair.member.tensor), (pair.other, equal))
        return found

    def _judge_model(self, model: _Model, saved: Any, fresh: dict[int, tuple[torch.Tensor, bool]], site: str) -> None:
        """Compare the outputs of a model with those that its saved state gives."""
        module = model.module()
        if module is None or not any(id(tensor) in fresh for tensor in module.parameters()):
            return
        name = self._catalog.module_name(module)
        names = {id(tensor): key for key, tensor in (*module.named_parameters(), *module.named_buffers())}
        changed = {key: value for key, (value, equal) in fresh.items() if not equal and key in names}
        with hidden_from_modes():
            lost = (
                []
                if _contains_module(saved)
                else model.unsaved.lost(module, saved, model.batch.size if model.batch else 0)
            )
        if not changed and not lost:
            self._reporter.report(name, AGREES)
            return
        try:
            culprit = self._find_culprit(model, module, changed, lost, names)
        except CannotCompute as error:
            self._reporter.report(name, UNDECIDED, str(error))
            return
        if not culprit:
            self._reporter.report(name, AGREES)
            return
        first, what = culprit
        self._reporter.report(name, DISAGREES, what, first=f"{name}.{first}", site=site)

    def _find_culprit(
        self,
        model: _Model,
        module: nn.Module,
        changed: dict[int, torch.Tensor],
        lost: list[Place],
        names: dict[int, str],
    ) -> tuple[str, str] | None:
        """Return the first tensor or attribute whose saved or first value changes the outputs, and what is wrong."""
        batch = model.batch
        if batch is None:
            raise CannotCompute(model.reason)
        live = batch.outputs(module)
        if differ(live, batch.outputs(module)):
            raise CannotCompute("its outputs in evaluation mode differ from call to call")
        for key, value in itertools.islice(changed.items(), MOST_TRIED):
            if differ(live, batch.outputs(module, {key: value})):
                return names[key], f"the file has another value of {names[key]} than the model, so the outputs differ"
        for place in lost[:MOST_TRIED]:
            with hidden_from_modes():
                value = model.unsaved.first_value(place)
            if differ(live, batch.outputs(module, unsaved={place: value}), by_rounding=True):
                kind = "a buffer with persistent=False" if place.is_buffer else "an attribute"
                return place.name, (
                    f"calls of the model change {place.name}, which is {kind}; the file lacks it, so the outputs of a "
                    "model that loads the file differ"
                )
        return None

    def _judge_optimizers(self, saved: Any, is_fresh_model: bool, site: str) -> None:
        """Compare the next update of optimizers with that of copies which load their saved states."""
        optimizers = dict(self._catalog.optimizers())
        for state in optimizer_states(saved):
            fitting = [(name, optimizer) for name, optimizer in optimizers.items() if fits(optimizer, state)]
            sharing = [(name, optimizer) for name, optimizer in fitting if shares_state(optimizer, state)]
            if not sharing and not (is_fresh_model and len(fitting) == 1):
                continue  # it may belong to another moment or another optimizer
            name, optimizer = (sharing or fitting)[0]
            del optimizers[name]
            self._judge_optimizer(name, optimizer, state, site)

    def _judge_optimizer(self, name: str, optimizer: Any, state: Any, site: str) -> None:
        try:
            for group, parameter, key in itertools.islice(differences(optimizer, state), MOST_TRIED):
                if update_differs(optimizer, state, group, parameter):
                    variable = self._catalog.find(parameter)
                    first = "a parameter" if variable is None else variable.name
                    found = f"{key} of {first} in the saved state of {name} is not the optimizer's: one that loads it "
                    self._reporter.report(name, DISAGREES, f"{found}makes another update", first=first, site=site)
                    return
        except CannotCompare as error:
            self._reporter.report(name, UNDECIDED, str(error))
            return
        self._reporter.report(name, AGREES)

    @contextmanager
    def _hidden(self) -> Iterator[None]:
        """Hide computations from modes of the program, and from TrainCheck."""
        here = self._recorder.hooks.thread
        here.suspended = True
        try:
            with without_modes():
                yield
        finally:
            here.suspended = False


def _contains_module(saved: Any) -> bool:
    """Whether a saved object holds a module as a whole, with its attributes."""
    if isinstance(saved, nn.Module):
        return True
    values = saved.values() if isinstance(saved, dict) else saved if isinstance(saved, (list, tuple)) else ()
    return any(isinstance(value, nn.Module) for value in values)
