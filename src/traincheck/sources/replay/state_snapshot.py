"""Saves and restores the state, besides arguments and parameters, that a call of a model depends on.

Note [Restored state]
The result of a call depends on its arguments, parameters and buffers, on random states, on autocast, and on attributes
of modules with the objects that they hold (a schedule that counts its calls). TrainCheck saves all of it when the call
begins, restores it for a replay, and afterwards puts the current state back. A generator or another iterator cannot be
put back, so a model that holds one is not executed again. Parameters are not saved: a replay runs only if they are
unmodified. Hooks of the program do not run in a replay, because they may log and count. Hooks of torch belong to the
computation (normalised weights, say), and so does a fault injected on purpose.
"""

from __future__ import annotations

import copy
import random
import sys
import weakref
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import nn, overrides
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import _disable_current_modes

from traincheck.sources.tensors.reading import hidden_from_modes, is_copyable

_OURS = ("torch.", "traincheck.sdc.")
"""Packages whose hooks belong to the computation."""
MODULE_INTERNALS = frozenset(vars(nn.Module())) - {"training"}
"""Attributes that torch gives each module, apart from its mode."""
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_CONTAINERS = (list, dict, set, deque, OrderedDict)
_DEPTH, _MAX_HELD = 3, 2_000
"""How deep objects are saved that a module holds, and how many."""
_STATELESS = frozenset(
    (int, float, bool, str, bytes, type(None), type, ModuleType, FunctionType, BuiltinFunctionType, MethodType)
) | frozenset((*weakref.ProxyTypes, torch.dtype, torch.device, torch.Size, nn.Parameter))


class RandomStates:
    """The states of all random streams of the process, at the time of construction."""

    def __init__(self) -> None:
        self._python = random.getstate()
        numpy = sys.modules.get("numpy.random")
        self._numpy = None if numpy is None else numpy.get_state()
        self._torch = torch.get_rng_state()
        self._cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []

    @property
    def streams(self) -> dict[str, torch.Tensor]:
        """The states of the torch streams: of the CPU, and of the accelerator of this process."""
        device = {"cuda": self._cuda[torch.cuda.current_device()]} if self._cuda else {}
        return {"cpu": self._torch, **device}

    def with_streams(self, streams: Mapping[str, torch.Tensor]) -> RandomStates:
        """Return these states, with the torch streams of another process."""
        states = copy.copy(self)
        states._torch = streams["cpu"]
        if states._cuda and "cuda" in streams:
            states._cuda = list(self._cuda)
            states._cuda[torch.cuda.current_device()] = streams["cuda"]
        return states

    def restore(self) -> None:
        """Continue the streams from these states."""
        random.setstate(self._python)
        if self._numpy is not None:
            sys.modules["numpy.random"].set_state(self._numpy)
        torch.set_rng_state(self._torch)
        if self._cuda:
            torch.cuda.set_rng_state_all(self._cuda)


class AttributeSnapshot:
    """The attributes of modules, with the contents of tensors, and of containers, random generators and other objects
    that they hold, up to `_DEPTH` levels deep. (Tensors inside other objects may be as large as the model.)"""

    def __init__(self, modules: Iterable[nn.Module], also: AttributeSnapshot | None = None) -> None:
        """Save the attributes of modules, and also the objects that an earlier instance has saved, as they are now."""
        self._values = [(module, _own_attributes(module)) for module in modules]
        attributes = [value for _, own in self._values for value in own.values()]
        with hidden_from_modes():
            tensors = [t for t in attributes if type(t) is torch.Tensor and is_copyable(t)]
        self._held: list[Any] = _held_by(self._values)
        if also is not None:
            self._held = _distinct([*self._held, *also._held])
            tensors = _distinct([*tensors, *(tensor for tensor, _, _ in also._tensors)])
        self._contents = [(value, value.copy()) for value in self._held if type(value) in _CONTAINERS]
        self._objects = [(own, dict(own)) for value in self._held if (own := _dict_of(value)) is not None]
        self._generators = [(value, state) for value in self._held if (state := _state_of_generator(value)) is not None]
        with hidden_from_modes():
            self._tensors: list[tuple[torch.Tensor, int, torch.Tensor]] = [
                (tensor, tensor._version, tensor.detach().clone()) for tensor in tensors
            ]

    def restore(self, *, unseen_writes: bool = False) -> None:
        """Have the modules keep this again. `unseen_writes`: tensors may have been written to without a new version,
        as this method does."""
        for module, values in self._values:
            own = vars(module)
            for name in [name for name in own if name not in values and name not in MODULE_INTERNALS]:
                del own[name]
            own.update(values)
        for held, content in (*self._contents, *self._objects):
            if not _same_content(held, content):
                held.clear()
                held.extend(content) if isinstance(held, (list, deque)) else held.update(content)
        for generator, state in self._generators:
            _restore_generator(generator, state)
        for tensor, version, value in self._tensors:
            if unseen_writes or tensor._version != version:
                tensor.data.copy_(value)


def _state_of_generator(value: Any) -> Any:
    """The state of a random generator of torch, Python or numpy; None for other objects."""
    if isinstance(value, torch.Generator):
        return value.get_state()
    if isinstance(value, random.Random):
        return value.getstate()
    return value._bit_generator.state if _is_of_numpy(value) else None


def _is_of_numpy(value: Any) -> bool:
    """Whether a value is a random generator of numpy."""
    return type(value).__module__.startswith("numpy.random") and hasattr(value, "_bit_generator")


def _restore_generator(generator: Any, state: Any) -> None:
    if isinstance(generator, torch.Generator):
        generator.set_state(state)
    elif isinstance(generator, random.Random):
        generator.setstate(state)
    else:
        generator._bit_generator.state = state


def iterator_of(modules: Iterable[nn.Module]) -> str:
    """The class of a generator or another iterator that a module holds and that has no attributes to restore; empty
    without one."""
    held = _held_by([(module, _own_attributes(module)) for module in modules])
    return next(
        (type(value).__name__ for value in held if hasattr(type(value), "__next__") and _dict_of(value) is None),
        "",
    )


def _distinct(values: Iterable[Any]) -> list[Any]:
    """The objects among `values`, each once."""
    return list({id(value): value for value in values}.values())


def _own_attributes(module: nn.Module) -> dict[str, Any]:
    return {name: value for name, value in vars(module).items() if name not in MODULE_INTERNALS}


def _held_by(values: Iterable[tuple[nn.Module, Mapping[str, Any]]]) -> list[Any]:
    """The objects that the attributes of modules hold, each once, without modules and what has no state."""
    held_objects: dict[int, Any] = {}
    layer = [value for _, own in values for value in own.values()]
    for _ in range(_DEPTH):
        inner: list[Any] = []
        for value in layer:
            if id(value) in held_objects or type(value) in _STATELESS or isinstance(value, nn.Module):
                continue
            held_objects[id(value)] = value
            if len(held_objects) >= _MAX_HELD:
                return list(held_objects.values())
            if isinstance(value, dict):
                inner += islice(value.values(), _MAX_HELD)
            elif isinstance(value, (list, tuple, set, deque)):
                inner += islice(value, _MAX_HELD)
            elif (own := _dict_of(value)) is not None:
                inner += own.values()
        layer = inner
    return list(held_objects.values())


def _dict_of(value: Any) -> dict[str, Any] | None:
    """The attributes that an object has for itself. No method of its class runs, which might create some."""
    try:
        own = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return None
    return own if type(own) is dict else None


@contextmanager
def without_hooks(modules: Sequence[nn.Module], parameters: Iterable[torch.Tensor]) -> Iterator[None]:
    """Remove hooks of the program inside the block, see Note [Restored state]."""
    tables = [vars(nn.modules.module)[f"_global{name}"] for name in _HOOKS]
    tables += [vars(module)[name] for module in modules for name in _HOOKS if vars(module).get(name)]
    tables += [hooks for hooks in (parameter._backward_hooks for parameter in parameters) if hooks]
    before = [(table, dict(table)) for table in tables if table]
    try:
        for table, entries in before:
            for key, hook in entries.items():
                if not is_torch_hook(hook):
                    del table[key]
        yield
    finally:
        for table, entries in before:
            table.clear()
            table.update(entries)


@contextmanager
def without_modes() -> Iterator[None]:
    """Remove modes of the program inside the block, because they may count; modes that select a device stay."""
    stack = overrides._get_current_function_mode_stack()
    device_modes = [mode for mode in stack if isinstance(mode, DeviceContext)]
    _swap_modes(stack, device_modes)
    try:
        with _disable_current_modes():
            yield
    finally:
        _swap_modes(device_modes, stack)


def _swap_modes(old: Sequence[Any], new: Sequence[Any]) -> None:
    """Replace the modes `old` by `new` on the stack of this thread."""
    if len(old) != len(new):
        for _ in old:
            overrides._pop_mode()
        for mode in new:
            overrides._push_mode(mode)


def has_only_torch_hooks(parameter: torch.Tensor) -> bool:
    """Return whether no hook of the program changes the gradient of a parameter."""
    return all(map(is_torch_hook, (parameter._backward_hooks or {}).values()))


def is_torch_hook(hook: Any) -> bool:
    """Return whether a hook belongs to torch, and so to the computation."""
    function = getattr(hook, "func", hook)  # of a partial
    home = getattr(function, "__module__", None) or type(function).__module__
    return f"{home}.".startswith(_OURS)


def _same_content(held: Any, content: Any) -> bool:
    if len(held) != len(content):
        return False
    pairs = zip(held, content, strict=True) if not isinstance(held, set) else ()
    if not all(mine is theirs for mine, theirs in pairs):
        return False
    if isinstance(held, dict):
        return all(mine is theirs for mine, theirs in zip(held.values(), content.values(), strict=True))
    return not isinstance(held, set) or held == content


def autocast_settings() -> list[dict[str, Any]]:
    """Return the autocast settings of each kind of device in use."""
    kinds = ["cpu"] + (["cuda"] if torch.cuda.is_initialized() else [])
    return [
        {
            "device_type": kind,
            "enabled": torch.is_autocast_enabled(kind),
            "dtype": torch.get_autocast_dtype(kind),
            "cache_enabled": torch.is_autocast_cache_enabled(),
        }
        for kind in kinds
    ]


def has_compiled_code() -> bool:
    """Return whether this process holds code that torch compiled: new hooks would then trigger recompilation."""
    convert_frame = sys.modules.get("torch._dynamo.convert_frame")
    return convert_frame is not None and bool(convert_frame.output_codes.seen_ids)
