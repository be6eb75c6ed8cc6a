"""Finds layers that a module makes and none of its methods uses.

A layer with parameters is unused if its module's class has no method, except the constructor, that mentions the
attribute. A class that reaches its layers by other names (`getattr`, `children()`, `_modules` ...) is left out, and so
are the containers of torch, and layers that are also part of another module (shared ones, kept by a second name). Code
outside the class may call the layer as well, so the rule waits for calls (relations/periodic/model_use.py).
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any

from torch import nn

from traincheck.sources.modules.live_modules import has_parameters, plain_name
from traincheck.vocab.bounded_cache import BoundedCache

_OTHER_WAYS = frozenset(
    (
        *("getattr", "__dict__", "vars", "_modules", "modules", "named_modules", "children", "named_children"),
        *("get_submodule", "__getattr__", "__getattribute__", "locals", "eval", "exec"),
    )
)
"""Names in the code of a class that may reach any attribute."""

_mentioned: BoundedCache[type, frozenset[str]] = BoundedCache()


def unused_layers(model: nn.Module, outermost: str) -> Iterator[str]:
    """The names of such layers in a model."""
    for path, module in model.named_modules():
        cls = type(module)
        if not module._modules or cls.__module__.partition(".")[0] == "torch" or "forward" in module.__dict__:
            continue
        mentioned = mentioned_names(cls)
        if not mentioned.isdisjoint(_OTHER_WAYS):
            continue
        for name, layer in module._modules.items():
            if layer is None or name in mentioned or not has_parameters(layer):
                continue
            if not _is_elsewhere(layer, f"{path}.{name}" if path else name, model):
                yield ".".join(filter(None, (outermost, plain_name(path), name)))


def mentioned_names(cls: type) -> frozenset[str]:
    """The names that the methods of a class mention, except its constructor."""
    mentioned = _mentioned.get(cls)
    return _mentioned.put(cls, frozenset().union(*map(_names, _methods(cls)))) if mentioned is None else mentioned


def _is_elsewhere(layer: nn.Module, path: str, model: nn.Module) -> bool:
    """Whether a layer, or one inside it, with parameters of its own, is also part of a module outside it."""
    inside = {id(module) for module in layer.modules() if module._parameters}
    named = model.named_modules(remove_duplicate=False)
    return any(id(module) in inside and not f"{name}.".startswith(f"{path}.") for name, module in named)


def _methods(cls: type) -> Iterator[Any]:
    """What a class and its bases below `nn.Module` define, except constructors."""
    for base in cls.__mro__:
        if base in (nn.Module, object):
            continue
        for name, value in vars(base).items():
            if name == "__init__" and isinstance(value, FunctionType):
                yield [code for code in value.__code__.co_consts if isinstance(code, CodeType)]  # functions made in it
            else:
                yield value


def _names(value: Any) -> frozenset[str]:
    """The names in the code of a function, property or decorated function, or in several codes."""
    if isinstance(value, CodeType):
        texts = (entry for entry in value.co_consts if isinstance(entry, str) and entry.isidentifier())
        inner = (entry for entry in value.co_consts if isinstance(entry, CodeType))
        return frozenset(value.co_names).union(texts, *map(_names, inner))
    if isinstance(value, list | tuple):
        return frozenset().union(*map(_names, value))
    if isinstance(value, property):
        return _names([value.fget, value.fset])
    if isinstance(value, staticmethod | classmethod):
        return _names(value.__func__)
    if isinstance(value, FunctionType):
        around = inspect.getclosurevars(value).nonlocals.values() if value.__closure__ else ()  # a decorated function
        return _names(value.__code__).union(*(_names(entry.__code__) for entry in around if inspect.isfunction(entry)))
    function = getattr(value, "__wrapped__", None) or getattr(value, "func", None)
    return _names(function) if isinstance(function, FunctionType) else frozenset()
