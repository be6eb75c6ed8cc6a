"""Names: what an API is called in events, at every level of the classes it is inherited through."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from traincheck.vocab.bounded_cache import Kept

_PUBLIC_HOMES = (
    "torch.optim",
    "torch.optim.lr_scheduler",
    "torch.nn",
    "torch.utils.data",
    "torch.amp",
)
"""Modules under whose name a class of torch is known to users, whatever file defines it."""


def main_name() -> str:
    """What to call `__main__`: the module given to -m, or the script's file name without its suffix."""
    main = sys.modules.get("__main__")
    spec = getattr(main, "__spec__", None)
    if spec is not None and spec.name:
        return str(spec.name).removesuffix(".__main__")
    file = getattr(main, "__file__", None)
    return Path(file).stem if file else "main"


_class_names: Kept[type, str] = Kept()


def class_name(cls: type) -> str:
    """The public, qualified name of a class; `__main__` is replaced by the script's name."""
    found = _class_names.get(cls)
    if found is None:
        found = _class_names.put(cls, _class_name(cls))
    return found


def _class_name(cls: type) -> str:
    module = cls.__module__
    if module == "__main__":
        module = main_name()
    elif module.startswith("torch."):
        for home in _PUBLIC_HOMES:
            if getattr(sys.modules.get(home), cls.__name__, None) is cls:
                return f"{home}.{cls.__name__}"
    return f"{module}.{cls.__qualname__}"


_levels: Kept[tuple[type, str, type], tuple[str, ...]] = Kept()


def levels(cls: type, method: str, top: type) -> tuple[str, ...]:
    """The names of `cls.method` along the classes up to `top`, most specific first."""
    key = (cls, method, top)
    found = _levels.get(key)
    if found is None:
        line = [base for base in cls.__mro__ if issubclass(base, top)]
        found = _levels.put(key, tuple(f"{class_name(base)}.{method}" for base in line))
    return found


def function_name(function: Any) -> str | None:
    """The public name of a torch function, None for one that has none (attribute reads, private helpers)."""
    name = torch.overrides.resolve_name(function)
    if name is None or name.endswith((".__get__", ".__delete__")) or "._" in name.replace(".__", "."):
        return None
    return str(name)


_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def parameter_names(function: Callable[..., Any] | None) -> tuple[str, ...]:
    """The names of the positional parameters of a Python function, empty where they are not known."""
    try:
        parameters = inspect.signature(function).parameters.values()  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return ()
    return tuple(parameter.name for parameter in parameters if parameter.kind in _POSITIONAL)


_RECURRENT = ("hx", "params", "has_biases", "num_layers", "dropout", "train", "bidirectional")
PADDED, PACKED = ("input", *_RECURRENT, "batch_first"), ("data", "batch_sizes", *_RECURRENT)
RECURRENT = frozenset(("torch.lstm", "torch.gru", "torch.rnn_tanh", "torch.rnn_relu"))
"""Functions that have two signatures, and the parameters of these: torch's table has now the one, now the other."""


def torch_parameter_names(function: Any, name: str) -> tuple[str, ...]:
    """As `parameter_names`, for a function of torch that is known by `name`.

    Functions written in C++ have no signature; those that can be overridden have one in the table that torch keeps for
    its own tests. There the tensor that a method is called on is named now `self`, now `input`.
    """
    if name in RECURRENT:
        return PADDED
    names = parameter_names(torch.overrides.get_testing_overrides().get(function, function))
    return ("self", *names[1:]) if name.startswith("torch.Tensor.") and names else names
