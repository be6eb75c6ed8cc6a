"""The modules of the program that are alive, as far as we have met them, without keeping any of them alive."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import (
    register_module_module_registration_hook,
    register_module_parameter_registration_hook,
)

from traincheck.sources.base import replace, wrapping
from traincheck.sources.recording.patches import UndoStack

Guard = Callable[[Callable[..., Any]], Callable[..., Any]]

MAX_OBJECTS = 50_000
"""Objects that are looked at for modules that exist already: a tenth of a second. The nearest come first."""


class LiveModules:
    """Modules are met when they are given a parameter or a child, copied, unpickled, or used.

    Note [No list of all objects]: `gc.get_objects` would find every module, but the list that it returns also holds a
    reference to each tuple that another thread is just building. `tuple(generator)` resizes its result, which Python
    allows only for a tuple that nobody else refers to: it raises SystemError in that thread, the program's or ours.

    The public registration hooks are used, not `Module.__init__`: the compiler of torch keeps that function and asks
    whether a function is that one. A module without parameters and children is met when it is called.
    """

    def __init__(self) -> None:
        # By identity, as a class of modules may define what is equal.
        self._modules_by_id: weakref.WeakValueDictionary[int, nn.Module] = weakref.WeakValueDictionary()

    def __contains__(self, module: nn.Module) -> bool:
        return self._modules_by_id.get(id(module)) is module

    def add(self, module: nn.Module) -> None:
        """Meet a module; what is inside it comes with it."""
        module = unwrap_compiled(module)
        if module is not None and module not in self:
            self._modules_by_id[id(module)] = module

    def attach(self, undo: UndoStack, guarded: Guard, *, again: bool = False) -> None:
        """Meet the modules that are built from now on, and at first those that exist already, see `_existing`."""
        register, ignore = guarded(self._register), lambda *_: None
        undo.callback(register_module_parameter_registration_hook(register).remove)
        undo.callback(register_module_module_registration_hook(register).remove)
        replace(undo, nn.Module, "__setstate__", wrapping(register, ignore, ignore))
        if not again:
            guarded(self._add_existing)(sys._getframe())

    def _register(self, module: nn.Module, *_: Any) -> None:
        self.add(module)

    def _add_existing(self, frame: FrameType) -> None:
        for module in _existing(frame):
            self.add(module)

    def living(self) -> list[nn.Module]:
        """All modules that were met and are alive, and those inside them, in the order in which they were met.

        Nothing of the program is called.
        """
        modules: dict[int, nn.Module] = {}
        pending = [
            module for reference in reversed(self._modules_by_id.valuerefs()) if (module := reference()) is not None
        ]
        while pending:
            module = pending.pop()
            if id(module) not in modules:
                modules[id(module)] = module
                pending.extend(child for child in children(module) if child is not None)
        return list(modules.values())


def children(module: nn.Module) -> list[Any]:
    """What a module has for children; none while it is being built."""
    return [unwrap_compiled(child) for child in list(module.__dict__.get("_modules", {}).values())]


def has_parameters(module: nn.Module) -> bool:
    """Whether the module or one inside it has parameters. (`parameters()` would build a name for each.)"""
    for parameter in module._parameters.values():  # asked at every call: a generator is as dear as all else here
        if parameter is not None:
            return True
    for child in module._modules.values():  # noqa: SIM110
        if child is not None and has_parameters(child):
            return True
    return False


# -- what torch.compile puts around a module -------------------------------------------------------------------------

ORIGINAL_MODULE, _COMPILER = "_orig_mod", "torch._dynamo.eval_frame"


def is_compile_wrapper(module: Any) -> bool:
    """Whether this is what `torch.compile` gives for a module: another one around it, which the program did not write.
    (Nearly none has a child of the name `INSIDE`; who asks at every call of a module looks for that first.)"""
    return ORIGINAL_MODULE in module._modules and type(module).__module__ == _COMPILER


def unwrap_compiled(module: Any) -> Any:
    """The module inside of what `torch.compile` makes of it (None while it is made); any other as it is."""
    if type(module).__module__ != _COMPILER:
        return module
    return module.__dict__.get("_modules", {}).get(ORIGINAL_MODULE)


def plain_name(name: str) -> str:
    """The qualified name of a module or parameter, without the modules that `torch.compile` has put in between."""
    if ORIGINAL_MODULE not in name:
        return name
    return ".".join(part for part in name.split(".") if part != ORIGINAL_MODULE)


# -- modules that exist already --------------------------------------------------------------------------------------


def _existing(frame: FrameType) -> list[nn.Module]:
    """The modules that were built before; all of them where no other thread is there to be hurt.

    Otherwise (a notebook has threads of its own) those that the global variables of the main program, of `frame` and
    of its callers lead to: of a function that runs, its variables cannot be read without changing its `locals()`.

    While torch is being imported, by which we are started mostly, there are none: for that half a million objects need
    not be looked at.
    """
    if getattr(torch.__spec__, "_initializing", False):
        return []
    if len(sys._current_frames()) == 1:
        return [candidate for candidate in gc.get_objects() if issubclass(type(candidate), nn.Module)]
    return list(_reachable_modules(list(_global_variables(frame))))


def _global_variables(frame: FrameType | None) -> Iterator[Any]:
    main = sys.modules.get("__main__")
    namespaces = {id(namespace): namespace for namespace in (getattr(main, "__dict__", {}),)}
    while frame is not None:
        namespaces[id(frame.f_globals)] = frame.f_globals
        frame = frame.f_back
    for namespace in namespaces.values():
        yield from list(namespace.values())


def _reachable_modules(nearest: list[Any]) -> Iterator[nn.Module]:
    """The modules among some objects and what these refer to, directly or over others.

    Nothing refers to a tuple that is still being built, so a walk along references does not come by one.
    """
    seen: set[int] = set()
    while nearest:
        further: list[Any] = []
        for candidate in nearest:
            if id(candidate) in seen or not gc.is_tracked(candidate):
                continue
            seen.add(id(candidate))
            if issubclass(type(candidate), nn.Module):
                yield candidate
            if len(seen) >= MAX_OBJECTS:
                return
            further += _references(candidate)
        nearest = further


_NOT_FOLLOWED = (type, ModuleType, CodeType, FrameType, torch.Tensor)
"""From what belongs to a program as it is written one comes to all that there is, and from a tensor into torch."""


def _references(value: Any) -> Iterable[Any]:
    kind = type(value)
    if issubclass(kind, _NOT_FOLLOWED):
        return ()
    if kind is FunctionType:  # not its globals
        return value.__closure__ or ()
    return gc.get_referents(value)
