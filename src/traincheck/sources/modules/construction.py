"""Readings of how modules were built: plain attributes, random buffers, their own `train` methods, uninitialized
parameters.

Note [What nothing has written]
A parameter is uninitialized if `Module.to_empty` allocated its memory and nothing has written to it since. It counts as
written if its version or its contents differ at the first call of the model. Writes through `.data` leave the version
as it was, and fresh memory often holds zeros. So TrainCheck reports nothing for memory of zeros, which the program may
have zeroed on purpose.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import nn
from torch.nn.modules.module import register_module_buffer_registration_hook, register_module_module_registration_hook

from traincheck.sources.base import replace, wrapping
from traincheck.sources.modules.live_modules import is_compile_wrapper, plain_name, unwrap_compiled
from traincheck.sources.modules.variables import VariableCatalog
from traincheck.sources.recording.frames import assigned_attributes, code_of
from traincheck.sources.recording.patches import TensorReference, UndoStack
from traincheck.sources.recording.recorder import Recorder
from traincheck.sources.tensors.reading import fingerprints, first_elements, hidden_from_modes, local_tensor
from traincheck.sources.tensors.storages import version_of
from traincheck.vocab.bounded_cache import BoundedCache
from traincheck.vocab.builtin_rules import PARAMETER, UNINITIALISED
from traincheck.vocab.demand import Demand
from traincheck.vocab.events import ANNOUNCED, LIVE, Reading
from traincheck.vocab.facts import FactValue, facts

SOURCE = "module_state"
MODULE, BUFFER = "module", "buffer"
ATTRIBUTES, OWN_TRAIN, MADE = "attributes", "own_train", "made"
AS_BUILT = "as built"
"""The value of `module.attributes` for a model whose modules all have the attributes they were built with."""

MAX_CHANGED = 64
"""Maximum number of changed attributes reported for a model. More than that are no accident."""
_PLAIN = (int, str)
"""Types of attributes that are compared. Flags are not, because programs switch them."""

_CONTEXTS = {kind: facts(kind=kind) for kind in (MODULE, BUFFER)}
_T = TypeVar("_T")


class PerModule(Generic[_T]):
    """A value for each module, by identity, for as long as the module lives."""

    def __init__(self) -> None:
        self._entries: dict[int, tuple[weakref.ref[nn.Module], _T]] = {}

    def __contains__(self, module: nn.Module) -> bool:
        entry = self._entries.get(id(module))
        return entry is not None and entry[0]() is module

    def put(self, module: nn.Module, value: _T) -> None:
        key = id(module)
        self._entries[key] = weakref.ref(module, lambda _: self._entries.pop(key, None)), value

    def clear(self) -> None:
        self._entries.clear()

    def get(self, module: nn.Module) -> _T | None:
        entry = self._entries.get(id(module))
        return entry[1] if entry is not None and entry[0]() is module else None

    def pop(self, module: nn.Module) -> _T | None:
        value = self.get(module)
        self._entries.pop(id(module), None)
        return value


class _Tree(NamedTuple):
    """An outermost module, with the inner modules whose own `train` has had no effect yet."""

    module: weakref.ref[nn.Module]
    pending_trains: list[tuple[weakref.ref[nn.Module], str]]


class _Allocated(NamedTuple):
    """A parameter after `to_empty`: the state that a write changes, and the site of the call."""

    parameter: weakref.ref[nn.Parameter]
    versions: tuple[int | None, int | None]
    contents: torch.Tensor
    site: str


class UninitialisedReadings:
    """Follows parameters that `to_empty` allocated until their model is called, see Note [What nothing has written]."""

    def __init__(self, demand: Demand, recorder: Recorder) -> None:
        self._recorder = recorder
        self._allocated: dict[int, _Allocated] = {}
        self.set_demand(demand)

    def set_demand(self, demand: Demand) -> None:
        """From now on take the readings if `demand` requests them."""
        self.enabled = demand.takes_reading(PARAMETER, UNINITIALISED)

    def attach(self, undo: UndoStack, source: str) -> None:
        """Observe `Module.to_empty`, on behalf of `source`."""
        if self.enabled:
            record = self._recorder.guarded(source, self._record_allocation, always=True)
            replace(
                undo, nn.Module, "to_empty", wrapping(lambda me, *a, **k: me, lambda me, _: record(me), lambda me: None)
            )

    def forget(self) -> None:
        """Drop all parameters, because later writes to them are unknown."""
        self._allocated.clear()

    def _record_allocation(self, module: nn.Module) -> None:
        site = self._recorder.sites.here()
        with hidden_from_modes():
            for parameter in module.parameters():
                read = _read_parameter(parameter)
                if read is not None:
                    self._allocated[id(parameter)] = _Allocated(TensorReference(parameter), *read, site)

    def report_first_call(self, module: nn.Module, outermost: str, call: int) -> None:
        """Report the uninitialized parameters of a model at its first call."""
        if not self._allocated:
            return
        unwritten = []
        with hidden_from_modes():
            for name, parameter in module.named_parameters():
                allocated = self._allocated.pop(id(parameter), None)
                if (
                    allocated is not None
                    and allocated.parameter() is parameter
                    and _is_unwritten(allocated, _read_parameter(parameter))
                ):
                    unwritten.append((f"{outermost}.{plain_name(name)}", allocated.site))
        for variable, site in unwritten:
            seq, context = self._recorder.next_seq(), facts(site=site)
            self._recorder.record_reading(Reading(seq, call, variable, PARAMETER, UNINITIALISED, True, context=context))


def _read_parameter(parameter: nn.Parameter) -> tuple[tuple[int | None, int | None], torch.Tensor] | None:
    dense: Any = local_tensor(parameter)
    if dense is None or not dense.is_floating_point() or not dense.numel():
        return None
    contents = first_elements(dense).detach().clone().view(torch.uint8)  # as bytes, because NaN equals nothing
    return (version_of(parameter), version_of(dense)), contents


def _is_unwritten(allocated: _Allocated, now: tuple[tuple[int | None, int | None], torch.Tensor] | None) -> bool:
    if now is None or None in allocated.versions or now[0] != allocated.versions:
        return False
    return torch.equal(allocated.contents, now[1]) and bool(allocated.contents.any())


class ConstructionReadings:
    """Reports at the first call of a model how its modules have changed since they were built.

    A module counts as built when it becomes part of another module, because its constructor is done by then. So the
    outermost module has no such reading.
    """

    def __init__(self, catalog: VariableCatalog, demand: Demand, recorder: Recorder) -> None:
        self._catalog = catalog
        self._recorder = recorder
        self._built: PerModule[dict[str, FactValue]] = PerModule()
        self._buffers: PerModule[dict[str, torch.Tensor]] = PerModule()
        self._switched: PerModule[bool] = PerModule()
        self._trees: dict[int, _Tree] = {}
        self._uninitialised = UninitialisedReadings(demand, recorder)
        self.set_demand(demand)

    def set_demand(self, demand: Demand) -> None:
        """From now on take the readings that `demand` requests."""
        self._attributes = demand.takes_reading(MODULE, ATTRIBUTES)
        self._own_train = demand.takes_reading(MODULE, OWN_TRAIN)
        self._made = demand.takes_reading(BUFFER, MADE)
        self._uninitialised.set_demand(demand)

    @property
    def enabled(self) -> bool:
        """Whether any of these readings is requested."""
        return self._attributes or self._own_train or self._made or self._uninitialised.enabled

    def attach(self, undo: UndoStack) -> None:
        """Observe the registration of modules and buffers, and `Module.train`."""
        guarded = self._recorder.guarded
        if self._attributes:
            undo.callback(register_module_module_registration_hook(guarded(SOURCE, self._module_added)).remove)
        if self._made:
            undo.callback(register_module_buffer_registration_hook(guarded(SOURCE, self._buffer_added)).remove)
        self._uninitialised.attach(undo, SOURCE)
        self._recorder.after_gap(SOURCE, self._drop_built, undo=undo)
        if self._own_train:
            record_train, ignore = guarded(SOURCE, self._train_called, always=True), lambda *_: None
            replace(undo, nn.Module, "train", wrapping(record_train, ignore, ignore))

    def _drop_built(self) -> None:
        """Drop what is known of modules, because the program may have changed them on purpose meanwhile."""
        self._built.clear()
        self._buffers.clear()
        self._uninitialised.forget()

    # -- construction of a model ------------------------------------------------------------------------------------

    def _module_added(self, parent: nn.Module, name: str, module: Any) -> None:
        if module is not None and module not in self._built and unwrap_compiled(parent) is parent:
            self._built.put(module, _plain_attributes(module))

    def _buffer_added(self, module: nn.Module, name: str, buffer: Any) -> None:
        if type(buffer) is not torch.Tensor or name in module._buffers:
            return  # an existing buffer gets another value
        with hidden_from_modes():
            dense = local_tensor(buffer)
            if dense is None or not dense.is_floating_point() or dense.numel() < 2:
                return
            initial = self._buffers.get(module)
            if initial is None:
                initial = {}
                self._buffers.put(module, initial)
            initial[name] = first_elements(dense).clone()

    def _train_called(self, module: nn.Module, mode: bool = True) -> None:
        if has_own_train(type(module)):
            self._switched.put(module, True)

    # -- calls of a model ------------------------------------------------------------------------------------------

    def report_first_call(self, module: nn.Module, outermost: str, call: int) -> None:
        """Report an outermost module at its first call."""
        self._uninitialised.report_first_call(module, outermost, call)
        if self._attributes:
            self._compare_attributes(module, outermost, call)
        if self._made:
            self._compare_buffers(module, outermost, call)
        if self._own_train:
            pending_trains = [
                (weakref.ref(inner), name)
                for name, inner in _named_modules(module, outermost)
                if has_own_train(type(inner)) and not _switched_off(inner)
            ]
            self._trees[id(module)] = _Tree(weakref.ref(module), pending_trains)
            self._trees = {key: tree for key, tree in list(self._trees.items()) if tree.module() is not None}
            for _, name in pending_trains:
                self._report(call, name, MODULE, OWN_TRAIN, False)

    def report_train_effect(self, module: nn.Module, call: Callable[[], int]) -> None:
        """Report modules whose own `train` has taken effect since the last call of an outermost module."""
        tree = self._trees.get(id(module))
        if tree is None or not tree.pending_trains:
            return
        for entry in list(tree.pending_trains):
            inner = entry[0]()
            if inner is None or inner in self._switched or _partly_off(inner):
                tree.pending_trains.remove(entry)
                if inner is not None:
                    self._report(call(), entry[1], MODULE, OWN_TRAIN, True)

    def _compare_attributes(self, module: nn.Module, outermost: str, call: int) -> None:
        changed: list[tuple[str, str]] = []
        judged = False
        for name, inner in _named_modules(module, outermost):
            built = self._built.pop(inner)
            if not built:
                continue
            judged = True
            now = inner.__dict__
            changed += [
                (f"{name}.{attribute}", f"was {value!r}, is {now.get(attribute)!r}"[:80])
                for attribute, value in built.items()
                if attribute in now
                and not _same(now[attribute], value)
                and attribute not in _set_by_methods(type(inner))
            ]
        for variable, value in changed[:MAX_CHANGED]:
            self._report(call, variable, MODULE, ATTRIBUTES, value)
        if judged and not changed:
            self._report(call, outermost, MODULE, ATTRIBUTES, AS_BUILT)

    def _compare_buffers(self, module: nn.Module, outermost: str, call: int) -> None:
        with hidden_from_modes():
            for name, inner in _named_modules(module, outermost):
                for attribute, initial in (self._buffers.pop(inner) or {}).items():
                    buffer = inner._buffers.get(attribute)
                    dense = None if buffer is None else local_tensor(buffer)
                    if dense is None or bool((initial == initial[0]).all()):
                        continue  # constant initial values are neutral
                    current = first_elements(dense)
                    unchanged = current.shape == initial.shape and torch.equal(
                        current, initial.to(current.device, current.dtype)
                    )
                    value = fingerprints([dense])[0] if unchanged else None
                    self._report(call, f"{name}.{attribute}", BUFFER, MADE, value, ANNOUNCED)

    def _report(self, call: int, variable: str, kind: str, attribute: str, value: FactValue, role: str = LIVE) -> None:
        seq = self._recorder.next_seq()
        self._recorder.record_reading(Reading(seq, call, variable, kind, attribute, value, role, _CONTEXTS[kind]))


def _named_modules(module: nn.Module, outermost: str) -> Iterator[tuple[str, nn.Module]]:
    for name, inner in module.named_modules():
        if not is_compile_wrapper(inner):
            yield (f"{outermost}.{plain_name(name)}" if name else outermost), inner


def _plain_attributes(module: nn.Module) -> dict[str, FactValue]:
    """The public plain attributes of a module.

    Constants of a class in the sense of torch are left out: sizes among them follow the parameters when these are
    replaced.
    """
    constants = getattr(type(module), "__constants__", ())
    return {
        name: value
        for name, value in module.__dict__.items()
        if type(value) in _PLAIN and not name.startswith("_") and name not in constants
    }


_set_by_methods_cache: BoundedCache[type, frozenset[str]] = BoundedCache()


def _set_by_methods(cls: type) -> frozenset[str]:
    """The attributes that methods of a class assign after its construction, as those of layers that are built late."""
    cached = _set_by_methods_cache.get(cls)
    if cached is None:
        parts = [part for base in cls.__mro__ for name, part in vars(base).items() if name != "__init__"]
        methods = [part.fset if isinstance(part, property) else part for part in parts]
        codes = filter(None, map(code_of, methods))
        cached = frozenset(name for code in codes for name in assigned_attributes(code))
        _set_by_methods_cache.put(cls, cached)
    return cached


def _same(now: Any, value: FactValue) -> bool:
    return type(now) is type(value) and now == value


def _partly_off(module: nn.Module) -> bool:
    """Whether part of a module is frozen or in evaluation mode, so the program did by hand what `train` does."""
    return not all(inner.training for inner in module.modules()) or not all(
        parameter.requires_grad for parameter in module.parameters()
    )


def _switched_off(module: nn.Module) -> bool:
    """Whether a module's own `train` has nothing to do: all flags and numbers that it depends on are False or at most
    0."""
    names = _mentioned_names(type(module)) - {"training"}
    settings = [value for name in names if type(value := module.__dict__.get(name)) in (bool, int)]
    return bool(settings) and not any(value > 0 for value in settings)


_FREEZES = frozenset(("eval", "requires_grad", "requires_grad_"))
_own_train_cache: BoundedCache[type, bool] = BoundedCache()


def has_own_train(cls: type) -> bool:
    """Whether a class of modules extends `Module.train` to freeze something, or to keep it in evaluation mode.

    It has a `train` that calls the base method and mentions a freezing name, itself or in the methods that it calls.
    """
    cached = _own_train_cache.get(cls)
    if cached is None:
        extends = any({"train"} < (names := _names_in(function)) and names & _BASE for function in _own_trains(cls))
        cached = _own_train_cache.put(cls, extends and bool(_mentioned_names(cls) & _FREEZES))
    return cached


_BASE = frozenset(("super", "Module"))
"""A method that calls its base method mentions one of these. A `train` that does not may be the training loop."""


def _own_trains(cls: type) -> list[Any]:
    return [vars(base)["train"] for base in cls.__mro__ if base is not nn.Module and "train" in vars(base)]


def _mentioned_names(cls: type) -> frozenset[str]:
    """The names mentioned by a class's own `train`, and by the methods of the class that it calls."""
    names = frozenset(name for function in _own_trains(cls) for name in _names_in(function))
    return names.union(*(_names_in(getattr(cls, name, None)) for name in names if name not in vars(nn.Module)))


def _names_in(function: Any) -> frozenset[str]:
    """The names of attributes and globals in the code of a function."""
    return frozenset(getattr(getattr(function, "__code__", None), "co_names", ()))
