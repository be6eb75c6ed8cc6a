"""Source `module_state`: how the modules of a model are set, read when the model is called."""

from __future__ import annotations

import weakref
from contextlib import ExitStack
from typing import Any

import torch
from torch import nn

from traincheck.sources.modules.construction import ConstructionReadings
from traincheck.sources.modules.live_modules import has_parameters, plain_name
from traincheck.sources.modules.module_calls import ModuleCalls
from traincheck.sources.modules.variables import Catalog
from traincheck.sources.recording.api_names import class_name
from traincheck.sources.recording.patches import Undo
from traincheck.sources.recording.recorder import Recorder
from traincheck.sources.tensors.reading import shape_of, unseen
from traincheck.vocab.demand import Demand
from traincheck.vocab.events import MODULE, NO_CALL, Reading
from traincheck.vocab.facts import FactValue, facts

KIND = "module"
TRAINING, PARAMETERS, CLASS, INPUT = "training", "parameters", "class", "input"

_CONTEXT = facts(kind=KIND)

_traced = torch._C._get_tracing_state


class _Tree:
    """An outermost module, with the training flags of all its modules at the last reading."""

    __slots__ = ("flags", "module", "told")

    def __init__(self, module: nn.Module) -> None:
        self.module = weakref.ref(module)
        self.flags: list[bool] = []
        self.told: dict[str, bool] = {}


class ModuleStateSource:
    """Reads the training flags of all modules of a model when the model is called, and what it is and is given at its
    first call (the shape of the first tensor); what became of its modules since they were built, see construction.py.

    Only flags that have changed since the last reading are told. A module without parameters (a loss) is no model.
    It attaches after the source `modules`, whose calls its readings are taken in.
    """

    name = "module_state"

    def __init__(self, calls: ModuleCalls, catalog: Catalog) -> None:
        self._calls = calls
        self._catalog = catalog
        self._trees: dict[int, _Tree] = {}
        self._construction: ConstructionReadings

    def offers(self) -> str | None:
        return None

    def attach(self, demand: Demand, recorder: Recorder) -> ExitStack:
        self._recorder = recorder
        self._wanted = [name for name in (CLASS, INPUT, PARAMETERS, TRAINING) if demand.wants_reading(KIND, name)]
        if recorder.changing:
            self._construction.ask(demand)
        else:
            self._construction = ConstructionReadings(self._catalog, demand, recorder)
        undo = Undo()
        if self._wanted or self._construction.wanted:
            self._construction.attach(undo)
            self._calls.listen(recorder.guarded(self.name, self._begins), outermost=True)
            recorder.after_gap(self.name, self._tell_anew, only_tells=True)
        return undo

    def _begins(self, module: nn.Module, args: Any) -> None:
        if not has_parameters(module) or "_is_replica" in module.__dict__:
            return  # (a replica is made anew for every call by DataParallel)
        if _traced() is not None:
            return  # sizes are tensors then, and looking at them is told to the program as a fault of its own
        tree = self._trees.get(id(module))
        if tree is None or tree.module() is not module:
            self._forget_dead()
            tree = self._trees[id(module)] = _Tree(module)
            self._introduce(module, args)
        if TRAINING in self._wanted:
            flags = _flags(module, {id(module)}, [module.training])
            if flags != tree.flags:
                tree.flags = flags
                self._tell_flags(module, tree)
        if torch.is_grad_enabled() and module.training:
            self._construction.trains(module, self._call)

    def _tell_anew(self) -> None:
        for tree in list(self._trees.values()):
            tree.flags, tree.told = [], {}

    def _forget_dead(self) -> None:
        self._trees = {key: tree for key, tree in list(self._trees.items()) if tree.module() is not None}

    def _introduce(self, module: nn.Module, args: Any) -> None:
        name, call = self._catalog.module_name(module), self._call()
        if CLASS in self._wanted:
            self._tell(call, name, CLASS, class_name(type(module)))
        self._construction.introduce(module, name, call)
        first = next((given for given in args if isinstance(given, torch.Tensor)), None)
        if INPUT in self._wanted and first is not None:
            with unseen():
                shape = shape_of(first)
                if shape is not None:
                    self._tell(call, name, INPUT, "x".join(map(str, shape)) or "scalar")
        if PARAMETERS in self._wanted:
            with unseen():
                sizes = [p.numel() for p in module.parameters() if not torch.nn.parameter.is_lazy(p)]
            self._tell(call, name, PARAMETERS, sum(sizes))

    def _tell_flags(self, module: nn.Module, tree: _Tree) -> None:
        outermost, call = self._catalog.module_name(module), self._call()
        named = ((plain_name(name), inner.training) for name, inner in module.named_modules())
        now = {f"{outermost}.{name}" if name else outermost: training for name, training in named}
        for name, flag in now.items():
            if tree.told.get(name) is not flag:
                self._tell(call, name, TRAINING, flag)
        tree.told = now

    def _call(self) -> int:
        """The call of the module that is being called, where it is observed."""
        call = self._recorder.innermost()
        return call.seq if call is not None and call.kind == MODULE else NO_CALL

    def _tell(self, call: int, variable: str, attribute: str, value: FactValue) -> None:
        seq = self._recorder.next_seq()
        self._recorder.reading(Reading(seq, call, variable, KIND, attribute, value, context=_CONTEXT))


def _flags(module: nn.Module, seen: set[int], found: list[bool]) -> list[bool]:
    """The training flags of the modules in `module`, each once, in the order of its `modules()` (which would build a
    name for each)."""
    for child in module._modules.values():
        if child is not None and id(child) not in seen:
            seen.add(id(child))
            found.append(child.training)
            if child._modules:
                _flags(child, seen, found)
    return found
