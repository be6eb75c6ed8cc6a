"""Finds the modules of the program that are alive, without keeping them alive."""

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
"""Maximum number of objects searched for existing modules, nearest first; the search takes a tenth of a second."""


class LiveModules:
    """Registers a module when it gets a parameter or a child, and when it is copied, unpickled, or used.

    Note [No list of all objects]
    `gc.get_objects` would find every module. But the list that it returns also references each tuple that another
    thread is building. `tuple(generator)` resizes its result, which Python allows only for a tuple without other
    references. So that thread, of the program or of TrainCheck, would raise SystemError.

    TrainCheck uses the public registration hooks instead of `Module.__init__`, because the compiler of torch compares
    functions with that one by identity. A module without parameters and children is registered when it is called.
    """

    def __init__(self) -> None:
        self.has_replaced = False
        """Whether a parameter or a child took the place of another one in a module since this was last set to False."""
        # By identity, because a class of modules may define `__eq__`.
        self._modules_by_id: weakref.WeakValueDictionary[int, nn.Module] = weakref.WeakValueDictionary()

    def __contains__(self, module: nn.Module) -> bool:
        return self._modules_by_id.get(id(module)) is module

    def add(self, module: nn.Module) -> None:
        """Register a module. The modules inside it belong to it."""
        module = unwrap_compiled(module)
        if module is not None and module not in self:
            self._modules_by_id[id(module)] = module

    def attach(self, undo: UndoStack, guarded: Guard, *, again: bool = False) -> None:
        """Register modules that are built from now on, and at first the existing ones, see `_existing`."""
        registers, ignore = guarded(self._registers), lambda *_: None
        undo.callback(register_module_parameter_registration_hook(registers).remove)
        undo.callback(register_module_module_registration_hook(registers).remove)
        replace(undo, nn.Module, "__setstate__", wrapping(guarded(self._unpickled), ignore, ignore))
        if not again:
            guarded(self._add_existing)(sys._getframe())

    def _registers(self, module: nn.Module, name: str, value: Any) -> None:
        """Note that a module is about to get a parameter or a child."""
        self.add(module)
        for members in (module._parameters, module._modules):
            former = members.get(name) if isinstance(members, dict) else None
            if former is not None and former is not value:
                self.has_replaced = True

    def _unpickled(self, module: nn.Module, *_: Any) -> None:
        self.add(module)

    def _add_existing(self, frame: FrameType) -> None:
        for module in _existing(frame):
            self.add(module)

    def living(self) -> list[nn.Module]:
        """All registered modules that are alive and the modules inside them, in order of registration.

        It calls no code of the program.
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
    """The child modules of a module; none while it is being built."""
    return [unwrap_compiled(child) for child in list(module.__dict__.get("_modules", {}).values())]


def has_parameters(module: nn.Module) -> bool:
    """Whether the module or a module inside it has parameters. `parameters()` would build a name for each of them."""
    for parameter in module._parameters.values():  # runs at every call, and a generator would double the cost
        if parameter is not None:
            return True
    for child in module._modules.values():  # noqa: SIM110
        if child is not None and has_parameters(child):
            return True
    return False


def buffers_of(module: nn.Module) -> list[torch.Tensor]:
    """The buffers of a module and of those inside it. A program may have its own attribute `buffers` (Megatron)."""
    return list(nn.Module.buffers(module))


def named_parameters(module: Any) -> list[tuple[str, nn.Parameter]]:
    """The parameters of a module under each of their names. A program may override the method with fewer arguments."""
    try:
        return list(module.named_parameters(remove_duplicate=False))
    except TypeError:
        return list(nn.Module.named_parameters(module, remove_duplicate=False))


# -- wrappers of torch.compile ---------------------------------------------------------------------------------------

ORIGINAL_MODULE, _COMPILER = "_orig_mod", "torch._dynamo.eval_frame"


def is_compile_wrapper(module: Any) -> bool:
    """Whether `torch.compile` made this module to wrap another one. Callers in hot paths check for a child named
    `ORIGINAL_MODULE` first, because nearly no module has one."""
    return ORIGINAL_MODULE in module._modules and type(module).__module__ == _COMPILER


def unwrap_compiled(module: Any) -> Any:
    """The module inside the wrapper of `torch.compile` (None while the wrapper is built); other modules unchanged."""
    if type(module).__module__ != _COMPILER:
        return module
    return module.__dict__.get("_modules", {}).get(ORIGINAL_MODULE)


_TRANSPARENT = frozenset((ORIGINAL_MODULE, "_fsdp_wrapped_module", "_checkpoint_wrapped_module"))
"""Names of the one child of a wrapper of torch. They are no part of a name."""


def plain_name(name: str) -> str:
    """The qualified name of a module or parameter, without the wrappers of torch inside."""
    if ORIGINAL_MODULE not in name and "_wrapped_module" not in name:
        return name
    return ".".join(part for part in name.split(".") if part not in _TRANSPARENT)


# -- wrappers for several ranks --------------------------------------------------------------------------------------

CHILD_BY_WRAPPER = {
    "DistributedDataParallel": "module",
    "DataParallel": "module",
    "FullyShardedDataParallel": "_fsdp_wrapped_module",
}
"""The attribute that holds the model, by the class of the wrapper."""
_SHARDED = "FSDPModule"
"""A class of torch that `fully_shard` adds to the class of a module, under a new name."""


def wrapped_model(module: Any) -> Any:
    """The model inside a wrapper of torch for several ranks; other modules unchanged."""
    child = CHILD_BY_WRAPPER.get(type(module).__name__)
    if child is None or not type(module).__module__.startswith("torch."):
        return module
    inner = unwrap_compiled(module.__dict__.get("_modules", {}).get(child))
    return module if inner is None else inner


def class_of_model(module: Any) -> type:
    """The class that the program gave to a module."""
    bases = type(module).__bases__
    if len(bases) > 1 and any(base.__name__ == _SHARDED for base in bases):
        return next(base for base in bases if base.__name__ != _SHARDED)
    return type(module)


# -- existing modules ------------------------------------------------------------------------------------------------


def _existing(frame: FrameType) -> list[nn.Module]:
    """The modules that exist already; all of them if the process has no other thread.

    With other threads (as in a notebook), TrainCheck finds modules through global variables of the main program, of
    `frame` and of its callers. It cannot read local variables of a running function without changing its `locals()`.

    While torch is being imported, which is when TrainCheck mostly starts, no module exists and the search is skipped.
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
    """The modules among some objects and everything reachable from them.

    A tuple under construction has no references to it, so the search never reaches one.
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
"""Types whose references the search does not follow: code leads to everything, tensors lead into torch."""


def _references(value: Any) -> Iterable[Any]:
    kind = type(value)
    if issubclass(kind, _NOT_FOLLOWED):
        return ()
    if kind is FunctionType:  # not its globals
        return value.__closure__ or ()
    return gc.get_referents(value)
