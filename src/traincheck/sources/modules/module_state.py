"""Source `module_state`: reads how the modules of a model are configured, when the model is called."""

from __future__ import annotations

import weakref
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from traincheck.sources.modules.construction import ConstructionReadings
from traincheck.sources.modules.live_modules import class_of_model, has_parameters, plain_name, wrapped_model
from traincheck.sources.modules.model_origins import ModelOrigins
from traincheck.sources.modules.module_calls import Ends, ModuleCalls
from traincheck.sources.modules.variables import VariableCatalog
from traincheck.sources.recording.api_names import class_name
from traincheck.sources.recording.patches import UndoStack
from traincheck.sources.recording.recorder import Recorder
from traincheck.sources.tensors.reading import hidden_from_modes, shape_of
from traincheck.vocab.builtin_rules import (
    ACTIVE,
    PRETRAINED,
    RANDOM_WEIGHTS,
    UNREAD_SETTINGS,
    UNSET_STATISTICS,
    UNUSED_LAYERS,
)
from traincheck.vocab.demand import Demand
from traincheck.vocab.events import MODULE, NO_CALL, Reading
from traincheck.vocab.facts import FactValue, facts

if TYPE_CHECKING:
    from traincheck.sources.modules.plain_tensors import PlainTensorReadings

KIND = "module"
TRAINING, PARAMETERS, CLASS, INPUT = "training", "parameters", "class", "input"

LOOKS = (1, 2, 4, 16)
"""The calls of a model at which flags are looked for that nothing reads, and statistics that nothing has set. Programs
set flags before their loop, in its first steps, between two passes over the data, or before they build an optimizer."""

CALLS_WITHOUT_GRADIENTS = 4
"""Calls of a model in a row, with gradients off, at which active layers are looked for."""

_CONTEXT = facts(kind=KIND)

_traced = torch._C._get_tracing_state


class _Tree:
    """An outermost module with the training flags of all its modules at the last reading."""

    __slots__ = ("calls", "calls_without_gradients", "flags", "module", "phase", "reported", "unread", "unset")

    def __init__(self, module: nn.Module) -> None:
        self.module = weakref.ref(module)
        self.flags: list[bool] = []
        self.reported: dict[str, bool] = {}
        self.calls = 0
        self.calls_without_gradients = 0  # since the last call with gradients
        self.phase = (0, 0)  # the passes over data that had ended, and the optimizers that had been built
        self.unread: set[str] = set()
        self.unset: set[str] = set()


class ModuleStateSource:
    """Reads the training flags of all modules at each call of a model. At the first call it also reads the class, the
    parameter count and the input shape, flags that nothing reads, and how modules changed since they were built
    (construction.py).

    It reports only flags that changed since the last reading. A module without parameters (a loss) is no model. The
    source attaches after `modules`, because its readings belong to calls of that source.
    """

    name = "module_state"

    def __init__(self, calls: ModuleCalls, catalog: VariableCatalog) -> None:
        self._calls = calls
        self._catalog = catalog
        self._trees: dict[int, _Tree] = {}
        self._construction: ConstructionReadings
        self._origins: ModelOrigins
        self._plain: PlainTensorReadings | None = None

    def offers(self) -> str | None:
        return None

    def attach(self, demand: Demand, recorder: Recorder) -> ExitStack:
        self._recorder = recorder
        names = (
            ACTIVE,
            CLASS,
            INPUT,
            PARAMETERS,
            PRETRAINED,
            RANDOM_WEIGHTS,
            TRAINING,
            UNREAD_SETTINGS,
            UNSET_STATISTICS,
            UNUSED_LAYERS,
        )
        self._attributes = [name for name in names if demand.takes_reading(KIND, name)]
        if recorder.reattaching:
            self._construction.set_demand(demand)
            self._origins.set_demand(demand)
        else:
            self._construction = ConstructionReadings(self._catalog, demand, recorder)
            self._origins = ModelOrigins(self.name, self._catalog, demand, recorder)
        undo = UndoStack()
        if self._attributes or self._construction.enabled or self._origins.enabled:
            self._construction.attach(undo)
            self._origins.attach(undo)
            ends = self._look_at_plain_tensors(recorder, undo) if RANDOM_WEIGHTS in self._attributes else None
            self._calls.add_listener(recorder.guarded(self.name, self._read_module), ends, outermost=True)
            recorder.after_gap(self.name, self._forget_reported, undo=undo, repeatable=True)
        return undo

    def _look_at_plain_tensors(self, recorder: Recorder, undo: UndoStack) -> Ends:
        """Return the listener for the ends of calls in which the use of plain tensors is followed."""

        def ended(output: Any) -> None:
            if self._plain is not None:
                self._plain.call_ends(output)

        guarded = recorder.guarded(self.name, ended, always=True)

        def ends(module: nn.Module, args: Any, output: Any) -> None:
            if self._plain is not None and self._plain.follows:
                guarded(output)
                leave()  # also where the guard has not called

        def leave() -> None:
            if self._plain is not None:
                self._plain.leave()

        undo.callback(leave)
        return ends

    def _note_plain_tensors(self, module: nn.Module, args: Any) -> None:
        if self._plain is None:
            from traincheck.sources.modules.plain_tensors import PlainTensorReadings  # not before the first call

            self._plain = PlainTensorReadings(self._catalog, self._recorder)
        self._plain.call_begins(module, args)

    def _read_module(self, module: nn.Module, args: Any) -> None:
        if not has_parameters(module) or "_is_replica" in module.__dict__:
            return  # DataParallel builds new replicas for every call
        if _traced() is not None:
            return  # sizes are tensors during tracing, and reading them would cause a warning
        module = wrapped_model(module)
        tree = self._trees.get(id(module))
        if tree is None or tree.module() is not module:
            self._forget_dead()
            tree = self._trees[id(module)] = _Tree(module)
            self._report_first_call(module, args)
        tree.calls += 1
        if self._origins.copies:
            self._origins.note_call(module)
        if RANDOM_WEIGHTS in self._attributes:
            self._note_plain_tensors(module, args)
        phase = self._recorder.steps.passes_ended, self._recorder.steps.optimizers_built
        if (tree.calls in LOOKS or phase != tree.phase) and UNREAD_SETTINGS in self._attributes:
            tree.phase = phase
            self._report_unread(module, tree)
        if TRAINING in self._attributes:
            flags = _flags(module, {id(module)}, [module.training])
            if flags != tree.flags:
                tree.flags = flags
                self._report_flags(module, tree)
        if torch.is_grad_enabled():
            tree.calls_without_gradients = 0
            if module.training:
                self._construction.report_train_effect(module, self._call)
                if tree.calls in LOOKS and self._recorder.steps.updates_made and UNSET_STATISTICS in self._attributes:
                    self._report_unset_statistics(module, tree)
        elif module.training and self._recorder.steps.updates_made and ACTIVE in self._attributes:
            tree.calls_without_gradients += 1
            if tree.calls_without_gradients <= CALLS_WITHOUT_GRADIENTS:
                self._report_active(module)

    def _report_active(self, module: nn.Module) -> None:
        from traincheck.sources.modules.active_layers import active_layers  # programs evaluate in evaluation mode

        active = active_layers(module)
        if active:
            self._report(self._call(), self._catalog.module_name(module), ACTIVE, active)

    def _report_unset_statistics(self, module: nn.Module, tree: _Tree) -> None:
        from traincheck.sources.modules.active_layers import without_statistics  # not before the first updates

        call, name = self._call(), self._catalog.module_name(module)
        with hidden_from_modes():
            layers = [f"{name}.{path}" for path in without_statistics(module)]
        for layer in layers:
            if layer not in tree.unset:
                tree.unset.add(layer)
                self._report(call, layer, UNSET_STATISTICS, True)

    def _forget_reported(self) -> None:
        for tree in list(self._trees.values()):
            tree.flags, tree.reported = [], {}

    def _forget_dead(self) -> None:
        self._trees = {key: tree for key, tree in list(self._trees.items()) if tree.module() is not None}

    def _report_first_call(self, module: nn.Module, args: Any) -> None:
        name, call = self._catalog.module_name(module), self._call()
        if CLASS in self._attributes:
            self._report(call, name, CLASS, class_name(class_of_model(module)))
        self._construction.report_first_call(module, name, call)
        self._origins.note_first_call(module, name, call)
        if UNUSED_LAYERS in self._attributes:
            from traincheck.sources.modules.unused_layers import unused_layers  # not before the first call of a model

            for layer in unused_layers(module, name):
                self._report(call, layer, UNUSED_LAYERS, True)
        if PRETRAINED in self._attributes and any(map(_has_origin, module.modules())):
            self._report(call, name, PRETRAINED, True)
        first = next((argument for argument in args if isinstance(argument, torch.Tensor)), None)
        if INPUT in self._attributes and first is not None:
            with hidden_from_modes():
                shape = shape_of(first)
                if shape is not None:
                    self._report(call, name, INPUT, "x".join(map(str, shape)) or "scalar")
        if PARAMETERS in self._attributes:
            with hidden_from_modes():
                sizes = [p.numel() for p in module.parameters() if not torch.nn.parameter.is_lazy(p)]
            self._report(call, name, PARAMETERS, sum(sizes))

    def _report_unread(self, module: nn.Module, tree: _Tree) -> None:
        from traincheck.sources.modules.unread_settings import unread_settings  # not before the first call of a model

        call = self._call()
        for variable, attribute in unread_settings(module, self._catalog.module_name(module)):
            if variable not in tree.unread:
                tree.unread.add(variable)
                self._report(call, variable, UNREAD_SETTINGS, attribute)

    def _report_flags(self, module: nn.Module, tree: _Tree) -> None:
        outermost, call = self._catalog.module_name(module), self._call()
        named = ((plain_name(name), inner.training) for name, inner in module.named_modules())
        now = {f"{outermost}.{name}" if name else outermost: training for name, training in named}
        for name, flag in now.items():
            if tree.reported.get(name) is not flag:
                self._report(call, name, TRAINING, flag)
        tree.reported = now

    def _call(self) -> int:
        """The recorded call of the module being called, if any."""
        call = self._recorder.innermost_call()
        return call.seq if call is not None and call.kind == MODULE else NO_CALL

    def _report(self, call: int, variable: str, attribute: str, value: FactValue) -> None:
        seq = self._recorder.next_seq()
        self._recorder.record_reading(Reading(seq, call, variable, KIND, attribute, value, context=_CONTEXT))


def _has_origin(module: nn.Module) -> bool:
    """Whether a module says where its weights were loaded from, as `from_pretrained` of several packages notes it."""
    return bool(module.__dict__.get("name_or_path"))


def _flags(module: nn.Module, seen: set[int], flags: list[bool]) -> list[bool]:
    """The training flags of the modules in `module`, each once, in the order of `modules()`, which would be slower."""
    for child in module._modules.values():
        if child is not None and id(child) not in seen:
            seen.add(id(child))
            flags.append(child.training)
            if child._modules:
                _flags(child, seen, flags)
    return flags
