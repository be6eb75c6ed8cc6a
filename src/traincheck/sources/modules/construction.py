"""Readings of how modules were built: plain attributes, buffers of random numbers, whether an own `train` ran, and
parameters that nothing has written since `Module.to_empty` allocated their memory.

Note [What nothing has written]
A parameter counts as written if its version or its contents differ at the first call of the model. Writing through
`.data` leaves the version as it was, and fresh memory often holds zeros: so nothing is reported of memory of zeros,
which may have been zeroed with intent.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import nn
from torch.nn.modules.module import register_module_buffer_registration_hook, register_module_module_registration_hook

from traincheck.sources.base import replace, wrapping
from traincheck.sources.modules.live_modules import plain_name, without_compiler, wraps_compiled
from traincheck.sources.modules.variables import Catalog
from traincheck.sources.recording.patches import Undo
from traincheck.sources.recording.recorder import Recorder
from traincheck.sources.tensors.reading import beginning, fingerprints, local, unseen
from traincheck.sources.tensors.storages import version_of
from traincheck.vocab.bounded_cache import Kept
from traincheck.vocab.builtin_rules import PARAMETER, UNINITIALISED
from traincheck.vocab.demand import Demand
from traincheck.vocab.events import ANNOUNCED, LIVE, Reading
from traincheck.vocab.facts import FactValue, facts

SOURCE = "module_state"
MODULE, BUFFER = "module", "buffer"
ATTRIBUTES, OWN_TRAIN, MADE = "attributes", "own_train", "made"
AS_BUILT = "as built"
"""The value of `module.attributes` for a model all of whose modules have the attributes that they were built with."""

MOST_CHANGED = 64
"""Attributes of a model that are told to have changed: more are no accident."""
_PLAIN = (int, str)
"""Flags are left out: they are there to be switched."""

_KIND = {kind: facts(kind=kind) for kind in (MODULE, BUFFER)}
_T = TypeVar("_T")


class _OfModules(Generic[_T]):
    """Something kept for modules, by identity, for as long as they live."""

    def __init__(self) -> None:
        self._kept: dict[int, tuple[weakref.ref[nn.Module], _T]] = {}

    def __contains__(self, module: nn.Module) -> bool:
        found = self._kept.get(id(module))
        return found is not None and found[0]() is module

    def put(self, module: nn.Module, value: _T) -> None:
        key = id(module)
        self._kept[key] = weakref.ref(module, lambda _: self._kept.pop(key, None)), value

    def clear(self) -> None:
        self._kept.clear()

    def get(self, module: nn.Module) -> _T | None:
        found = self._kept.get(id(module))
        return found[1] if found is not None and found[0]() is module else None

    def pop(self, module: nn.Module) -> _T | None:
        value = self.get(module)
        self._kept.pop(id(module), None)
        return value


class _Tree(NamedTuple):
    """What is followed of an outermost module: modules inside with a `train` of their own that has no effect yet."""

    module: weakref.ref[nn.Module]
    waiting: list[tuple[weakref.ref[nn.Module], str]]


class _Allocated(NamedTuple):
    """A parameter after `to_empty`: what of it a write changes, and where it was called."""

    parameter: weakref.ref[nn.Parameter]
    versions: tuple[int | None, int | None]
    contents: torch.Tensor
    site: str


class UninitialisedReadings:
    """Follows the parameters that `to_empty` has allocated until their model is called, see Note [What nothing has
    written]."""

    def __init__(self, demand: Demand, recorder: Recorder) -> None:
        self._recorder = recorder
        self._allocated: dict[int, _Allocated] = {}
        self.ask(demand)

    def ask(self, demand: Demand) -> None:
        """From now on take the readings if `demand` asks for them."""
        self.wanted = demand.wants_reading(PARAMETER, UNINITIALISED)

    def attach(self, undo: Undo, source: str) -> None:
        """Watch `Module.to_empty`, on behalf of `source`."""
        if self.wanted:
            noted = self._recorder.guarded(source, self._note, always=True)
            replace(
                undo, nn.Module, "to_empty", wrapping(lambda me, *a, **k: me, lambda me, _: noted(me), lambda me: None)
            )

    def forget(self) -> None:
        """What has been written since is not known."""
        self._allocated.clear()

    def _note(self, module: nn.Module) -> None:
        site = self._recorder.sites.here()
        with unseen():
            for parameter in module.parameters():
                read = _read(parameter)
                if read is not None:
                    self._allocated[id(parameter)] = _Allocated(weakref.ref(parameter), *read, site)

    def introduce(self, module: nn.Module, outermost: str, call: int) -> None:
        """Report the parameters of a model, which is called for the first time, that nothing has written."""
        if not self._allocated:
            return
        found = []
        with unseen():
            for name, parameter in module.named_parameters():
                known = self._allocated.pop(id(parameter), None)
                if known is not None and known.parameter() is parameter and _is_unwritten(known, _read(parameter)):
                    found.append((f"{outermost}.{plain_name(name)}", known.site))
        for variable, site in found:
            seq, context = self._recorder.next_seq(), facts(site=site)
            self._recorder.reading(Reading(seq, call, variable, PARAMETER, UNINITIALISED, True, context=context))


def _read(parameter: nn.Parameter) -> tuple[tuple[int | None, int | None], torch.Tensor] | None:
    dense: Any = local(parameter)
    if dense is None or not dense.is_floating_point() or not dense.numel():
        return None
    contents = beginning(dense).detach().clone().view(torch.uint8)  # NaN equals nothing
    return (version_of(parameter), version_of(dense)), contents


def _is_unwritten(known: _Allocated, now: tuple[tuple[int | None, int | None], torch.Tensor] | None) -> bool:
    if now is None or None in known.versions or now[0] != known.versions:
        return False
    return torch.equal(known.contents, now[1]) and bool(known.contents.any())


class ConstructionReadings:
    """Tells at the first call of a model what became of its modules since they were built.

    A module counts as built when it is made part of another: what a constructor does is over by then. So nothing is
    said of the outermost module.
    """

    def __init__(self, catalog: Catalog, demand: Demand, recorder: Recorder) -> None:
        self._catalog = catalog
        self._recorder = recorder
        self._built: _OfModules[dict[str, FactValue]] = _OfModules()
        self._buffers: _OfModules[dict[str, torch.Tensor]] = _OfModules()
        self._switched: _OfModules[bool] = _OfModules()
        self._trees: dict[int, _Tree] = {}
        self._uninitialised = UninitialisedReadings(demand, recorder)
        self.ask(demand)

    def ask(self, demand: Demand) -> None:
        """From now on take the readings that `demand` asks for."""
        self._attributes = demand.wants_reading(MODULE, ATTRIBUTES)
        self._own_train = demand.wants_reading(MODULE, OWN_TRAIN)
        self._made = demand.wants_reading(BUFFER, MADE)
        self._uninitialised.ask(demand)

    @property
    def wanted(self) -> bool:
        """Whether any of these readings is to be taken."""
        return self._attributes or self._own_train or self._made or self._uninitialised.wanted

    def attach(self, undo: Undo) -> None:
        """Watch how modules are put together, and their `train`."""
        guarded = self._recorder.guarded
        if self._attributes:
            undo.callback(register_module_module_registration_hook(guarded(SOURCE, self._joins)).remove)
        if self._made:
            undo.callback(register_module_buffer_registration_hook(guarded(SOURCE, self._gets_buffer)).remove)
        self._uninitialised.attach(undo, SOURCE)
        self._recorder.after_gap(SOURCE, self._forget)
        if self._own_train:
            noted, nothing = guarded(SOURCE, self._switches, always=True), lambda *_: None
            replace(undo, nn.Module, "train", wrapping(noted, nothing, nothing))

    def _forget(self) -> None:
        """A model may have been used meanwhile: what was built until now is not as it was built, with good reason."""
        self._built.clear()
        self._buffers.clear()
        self._uninitialised.forget()

    # -- while a model is built ------------------------------------------------------------------------------------

    def _joins(self, parent: nn.Module, name: str, module: Any) -> None:
        if module is not None and module not in self._built and without_compiler(parent) is parent:
            self._built.put(module, _plain(module))

    def _gets_buffer(self, module: nn.Module, name: str, buffer: Any) -> None:
        if type(buffer) is not torch.Tensor or name in module._buffers:
            return  # one that is there already is given another value
        with unseen():
            dense = local(buffer)
            if dense is None or not dense.is_floating_point() or dense.numel() < 2:
                return
            kept = self._buffers.get(module)
            if kept is None:
                kept = {}
                self._buffers.put(module, kept)
            kept[name] = beginning(dense).clone()

    def _switches(self, module: nn.Module, mode: bool = True) -> None:
        if has_own_train(type(module)):
            self._switched.put(module, True)

    # -- when it is called -----------------------------------------------------------------------------------------

    def introduce(self, module: nn.Module, outermost: str, call: int) -> None:
        """Tell of an outermost module that is called for the first time."""
        self._uninitialised.introduce(module, outermost, call)
        if self._attributes:
            self._compare_attributes(module, outermost, call)
        if self._made:
            self._compare_buffers(module, outermost, call)
        if self._own_train:
            waiting = [
                (weakref.ref(inner), name)
                for name, inner in _named(module, outermost)
                if has_own_train(type(inner)) and not _switched_off(inner)
            ]
            self._trees[id(module)] = _Tree(weakref.ref(module), waiting)
            self._trees = {key: tree for key, tree in list(self._trees.items()) if tree.module() is not None}
            for _, name in waiting:
                self._tell(call, name, MODULE, OWN_TRAIN, False)

    def trains(self, module: nn.Module, call: Callable[[], int]) -> None:
        """Tell which `train` has taken effect since the last call of an outermost module."""
        tree = self._trees.get(id(module))
        if tree is None or not tree.waiting:
            return
        for entry in list(tree.waiting):
            inner = entry[0]()
            if inner is None or inner in self._switched or _partly_off(inner):
                tree.waiting.remove(entry)
                if inner is not None:
                    self._tell(call(), entry[1], MODULE, OWN_TRAIN, True)

    def _compare_attributes(self, module: nn.Module, outermost: str, call: int) -> None:
        changed: list[tuple[str, str]] = []
        judged = False
        for name, inner in _named(module, outermost):
            built = self._built.pop(inner)
            if not built:
                continue
            judged = True
            now = inner.__dict__
            changed += [
                (f"{name}.{attribute}", f"was {value!r}, is {now.get(attribute)!r}"[:80])
                for attribute, value in built.items()
                if attribute in now and not _same(now[attribute], value)
            ]
        for variable, value in changed[:MOST_CHANGED]:
            self._tell(call, variable, MODULE, ATTRIBUTES, value)
        if judged and not changed:
            self._tell(call, outermost, MODULE, ATTRIBUTES, AS_BUILT)

    def _compare_buffers(self, module: nn.Module, outermost: str, call: int) -> None:
        with unseen():
            for name, inner in _named(module, outermost):
                for attribute, kept in (self._buffers.pop(inner) or {}).items():
                    buffer = inner._buffers.get(attribute)
                    dense = None if buffer is None else local(buffer)
                    if dense is None or bool((kept == kept[0]).all()):
                        continue  # what begins as ones or zeros is neutral
                    begins = beginning(dense)
                    made = begins.shape == kept.shape and torch.equal(begins, kept.to(begins.device, begins.dtype))
                    value = fingerprints([dense])[0] if made else None
                    self._tell(call, f"{name}.{attribute}", BUFFER, MADE, value, ANNOUNCED)

    def _tell(self, call: int, variable: str, kind: str, attribute: str, value: FactValue, role: str = LIVE) -> None:
        seq = self._recorder.next_seq()
        self._recorder.reading(Reading(seq, call, variable, kind, attribute, value, role, _KIND[kind]))


def _named(module: nn.Module, outermost: str) -> Iterator[tuple[str, nn.Module]]:
    for name, inner in module.named_modules():
        if not wraps_compiled(inner):
            yield (f"{outermost}.{plain_name(name)}" if name else outermost), inner


def _plain(module: nn.Module) -> dict[str, FactValue]:
    """The plain attributes that a module shows (an underscore begins what is its own affair).

    Sizes that torch calls constants of a class follow its parameters when these are replaced by others.
    """
    constants = getattr(type(module), "__constants__", ())
    return {
        name: value
        for name, value in module.__dict__.items()
        if type(value) in _PLAIN and not name.startswith("_") and name not in constants
    }


def _same(now: Any, value: FactValue) -> bool:
    return type(now) is type(value) and now == value


def _partly_off(module: nn.Module) -> bool:
    """Whether part of a module is in evaluation mode or frozen: what its `train` sees to was seen to by hand."""
    return not all(inner.training for inner in module.modules()) or not all(
        parameter.requires_grad for parameter in module.parameters()
    )


def _switched_off(module: nn.Module) -> bool:
    """Whether an own `train` has nothing to see to: all flags and numbers that it goes by are False, or not above 0."""
    names = _mentioned(type(module)) - {"training"}
    told = [value for name in names if type(value := module.__dict__.get(name)) in (bool, int)]
    return bool(told) and not any(value > 0 for value in told)


_FREEZES = frozenset(("eval", "requires_grad", "requires_grad_"))
_own: Kept[type, bool] = Kept()


def has_own_train(cls: type) -> bool:
    """Whether a class of modules extends `Module.train` to freeze something, or to keep it in evaluation mode.

    It has a `train` that calls that of its base, and mentions what freezes, itself or in the methods that it calls.
    """
    found = _own.get(cls)
    if found is None:
        own = any({"train"} < (names := _names_in(function)) and names & _BASE for function in _own_trains(cls))
        found = _own.put(cls, own and bool(_mentioned(cls) & _FREEZES))
    return found


_BASE = frozenset(("super", "Module"))
"""One of these is mentioned by a method that calls that of its base. (A `train` that does not may be the loop.)"""


def _own_trains(cls: type) -> list[Any]:
    return [vars(base)["train"] for base in cls.__mro__ if base is not nn.Module and "train" in vars(base)]


def _mentioned(cls: type) -> frozenset[str]:
    """The names that an own `train` mentions, and the methods of the class that it calls."""
    found = frozenset(name for function in _own_trains(cls) for name in _names_in(function))
    return found.union(*(_names_in(getattr(cls, name, None)) for name in found if name not in vars(nn.Module)))


def _names_in(function: Any) -> frozenset[str]:
    """The names of attributes and globals that the code of a function mentions."""
    return frozenset(getattr(getattr(function, "__code__", None), "co_names", ()))
