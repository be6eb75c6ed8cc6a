"""Names APIs in events: the public name of a class or function, at every level of its base classes.

Note [Filters of warnings]
Python shows a warning of a line once, and again after any change of the filters. `torch.overrides.resolve_name` sets a
filter in each call. So a program would show its warnings again for each function that TrainCheck names. Here its
undecorated function is called, and the table of signatures is kept.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from traincheck.vocab.bounded_cache import BoundedCache

_PUBLIC_HOMES = (
    "torch.optim",
    "torch.optim.lr_scheduler",
    "torch.nn",
    "torch.utils.data",
    "torch.amp",
)
"""Modules from which users import classes of torch, whichever file defines them."""


def main_name() -> str:
    """The name of `__main__` in events: the module given to -m, or the script's file name without its suffix."""
    main = sys.modules.get("__main__")
    spec = getattr(main, "__spec__", None)
    if spec is not None and spec.name:
        return str(spec.name).removesuffix(".__main__")
    file = getattr(main, "__file__", None)
    return Path(file).stem if file else "main"


@functools.cache
def release() -> str:
    """The release of torch, as descriptions of what a program computes begin: `torch 2.13`."""
    return f"torch {'.'.join(torch.__version__.split('.')[:2])}"


_class_names: BoundedCache[type, str] = BoundedCache()


def class_name(cls: type) -> str:
    """The public, qualified name of a class; `__main__` is replaced by the script's name."""
    name = _class_names.get(cls)
    if name is None:
        name = _class_names.put(cls, _class_name(cls))
    return name


def _class_name(cls: type) -> str:
    module = cls.__module__
    if module == "__main__":
        module = main_name()
    elif module.startswith("torch."):
        for home in _PUBLIC_HOMES:
            if getattr(sys.modules.get(home), cls.__name__, None) is cls:
                return f"{home}.{cls.__name__}"
    return f"{module}.{cls.__qualname__}"


_levels: BoundedCache[tuple[type, str, type], tuple[str, ...]] = BoundedCache()


def levels(cls: type, method: str, top: type) -> tuple[str, ...]:
    """The names of `cls.method` along the classes up to `top`, most specific first.

    Classes that torch derives at run time have no name: `fully_shard` makes an `FSDPNet` of each `Net`, which would
    look like a class of torch and mean another class in each program.
    """
    key = (cls, method, top)
    names = _levels.get(key)
    if names is None:
        bases = [base for base in cls.__mro__ if issubclass(base, top) and not _derived_by_torch(base)]
        names = _levels.put(key, tuple(f"{class_name(base)}.{method}" for base in bases))
    return names


def _derived_by_torch(cls: type) -> bool:
    """Whether a class belongs to a module of torch, which does not have it under its name."""
    if not cls.__module__.startswith("torch."):
        return False
    found: Any = sys.modules.get(cls.__module__)
    for part in cls.__qualname__.split("."):
        found = getattr(found, part, None)
    return found is not cls


def build_tables() -> None:
    """Have torch build its tables of functions now, so that they hold torch functions and no wrappers of ours."""
    torch.overrides.get_ignored_functions()
    torch.overrides.get_overridable_functions()
    testing_overrides()
    _resolver()


def listed_name(function: Any) -> str | None:
    """The name of a function in torch's tables. See Note [Filters of warnings]."""
    name = _resolver()(function)
    return None if name is None else str(name)


GRADIENT = "torch.Tensor.grad.__get__"
"""The name of reading the attribute `grad`."""


@functools.cache
def _resolver() -> Callable[[Any], Any]:
    resolve = torch.overrides.resolve_name
    resolve(torch.add)  # builds the table of names, which warns of deprecated functions
    undecorated: Callable[[Any], Any] = getattr(resolve, "__wrapped__", resolve)
    return undecorated


@functools.cache
def testing_overrides() -> dict[Any, Any]:
    """torch's table of functions that can be overridden, with the signatures of those in C++."""
    overrides: dict[Any, Any] = torch.overrides.get_testing_overrides()
    return overrides


def function_name(function: Any) -> str | None:
    """The public name of a torch function, None for attribute reads and private helpers."""
    name = listed_name(function)
    if name is None or name.endswith((".__get__", ".__delete__")) or "._" in name.replace(".__", "."):
        return None
    return name


_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def parameter_names(function: Callable[..., Any] | None) -> tuple[str, ...]:
    """The names of the positional parameters of a function, empty for a function without a signature."""
    try:
        parameters = inspect.signature(function).parameters.values()  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return ()
    return tuple(parameter.name for parameter in parameters if parameter.kind in _POSITIONAL)


_RECURRENT = ("hx", "params", "has_biases", "num_layers", "dropout", "train", "bidirectional")
PADDED, PACKED = ("input", *_RECURRENT, "batch_first"), ("data", "batch_sizes", *_RECURRENT)
RECURRENT = frozenset(("torch.lstm", "torch.gru", "torch.rnn_tanh", "torch.rnn_relu"))
"""Functions with two signatures, and the parameters of both: torch's table lists either, depending on its version."""


def torch_parameter_names(function: Any, name: str) -> tuple[str, ...]:
    """As `parameter_names`, for the function of torch with this public name.

    Functions written in C++ have no signature; torch lists those that can be overridden in a table for its own tests.
    That table names the tensor of a method `self` or `input`; here it is always `self`.
    """
    if name in RECURRENT:
        return PADDED
    names = parameter_names(testing_overrides().get(function, function))
    return ("self", *names[1:]) if name.startswith("torch.Tensor.") and names else names
