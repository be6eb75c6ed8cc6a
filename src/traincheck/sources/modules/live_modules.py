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
from traincheck.sources.recording.patches import Undo

Guard = Callable[[Callable[..., Any]], Callable[..., Any]]

MOST_LOOKED_AT = 50_000
"""Objects that are looked at for modules that exist already: a tenth of a second. The nearest come first."""


class KnownModules:
    """Modules are met when they are given a parameter or a child, copied, unpickled, or used.

    Note [No list of all objects]: `gc.get_objects` would find every module, but the list that it returns also holds a
    reference to each tuple that another thread is just building. `tuple(generator)` resizes its result, which Python
    allows only for a tuple that nobody else refers to: it raises SystemError in that thread, the program's or ours.

    The public registration hooks are used, not `Module.__init__`: the compiler of torch keeps that function and asks
    whether a function is that one. A module without parameters and children is met when it is called.
    """

    def __init__(self) -> None:
        # By identity, as a class of modules may define what is equal.
        self._met: weakref.WeakValueDictionary[int, nn.Module] = weakref.WeakValueDictionary()

    def __contains__(self, module: nn.Module) -> bool:
        return self._met.get(id(module)) is module

    def add(self, module: nn.Module) -> None:
        """Meet a module; what is inside it comes with it."""
        module = without_compiler(module)
        if module is not None and module not in self:
            self._met[id(module)] = module

    def attach(self, undo: Undo, guarded: Guard, *, again: bool = False) -> None:
        """Meet the modules that are built from now on, and at first those that exist already, see `_existing`."""
        met, nothing = guarded(self._gets), lambda *_: None
        undo.callback(register_module_parameter_registration_hook(met).remove)
        undo.callback(register_module_module_registration_hook(met).remove)
        replace(undo, nn.Module, "__setstate__", wrapping(met, nothing, nothing))
        if not again:
            guarded(self._look_around)(sys._getframe())

    def _gets(self, module: nn.Module, *_: Any) -> None:
        self.add(module)

    def _look_around(self, frame: FrameType) -> None:
        for module in _existing(frame):
            self.add(module)

    def living(self) -> list[nn.Module]:
        """All modules that were met and are alive, and those inside them, in the order in which they were met.

        Nothing of the program is called.
        """
        found: dict[int, nn.Module] = {}
        pending = [module for reference in reversed(self._met.valuerefs()) if (module := reference()) is not None]
        while pending:
            module = pending.pop()
            if id(module) not in found:
                found[id(module)] = module
                pending.extend(child for child in children(module) if child is not None)
        return list(found.values())


def children(module: nn.Module) -> list[Any]:
    """What a module has for children; none while it is being built."""
    return [without_compiler(child) for child in list(module.__dict__.get("_modules", {}).values())]


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

INSIDE, _COMPILER = "_orig_mod", "torch._dynamo.eval_frame"


def wraps_compiled(module: Any) -> bool:
    """Whether this is what `torch.compile` gives for a module: another one around it, which the program did not write.
    (Nearly none has a child of the name `INSIDE`; who asks at every call of a module looks for that first.)"""
    return INSIDE in module._modules and type(module).__module__ == _COMPILER


def without_compiler(module: Any) -> Any:
    """The module inside of what `torch.compile` makes of it (None while it is made); any other as it is."""
    if type(module).__module__ != _COMPILER:
        return module
    return module.__dict__.get("_modules", {}).get(INSIDE)


def plain_name(name: str) -> str:
    """The qualified name of a module or parameter, without the modules that `torch.compile` has put in between."""
    if INSIDE not in name:
        return name
    return ".".join(part for part in name.split(".") if part != INSIDE)


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
        return [thing for thing in gc.get_objects() if issubclass(type(thing), nn.Module)]
    return list(_led_to(list(_global_variables(frame))))


def _global_variables(frame: FrameType | None) -> Iterator[Any]:
    main = sys.modules.get("__main__")
    spaces = {id(space): space for space in (getattr(main, "__dict__", {}),)}
    while frame is not None:
        spaces[id(frame.f_globals)] = frame.f_globals
        frame = frame.f_back
    for space in spaces.values():
        yield from list(space.values())


def _led_to(nearest: list[Any]) -> Iterator[nn.Module]:
    """The modules among some objects and what these refer to, directly or over others.

    Nothing refers to a tuple that is still being built, so a walk along references does not come by one.
    """
    seen: set[int] = set()
    while nearest:
        further: list[Any] = []
        for thing in nearest:
            if id(thing) in seen or not gc.is_tracked(thing):
                continue
            seen.add(id(thing))
            if issubclass(type(thing), nn.Module):
                yield thing
            if len(seen) >= MOST_LOOKED_AT:
                return
            further += _inside(thing)
        nearest = further


_LEADS_ASTRAY = (type, ModuleType, CodeType, FrameType, torch.Tensor)
"""From what belongs to a program as it is written one comes to all that there is, and from a tensor into torch."""


def _inside(thing: Any) -> Iterable[Any]:
    kind = type(thing)
    if issubclass(kind, _LEADS_ASTRAY):
        return ()
    if kind is FunctionType:  # not its globals
        return thing.__closure__ or ()
    return gc.get_referents(thing)
