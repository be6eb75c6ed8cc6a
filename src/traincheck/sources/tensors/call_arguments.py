"""Splits the arguments of a call into plain values and tensors, by the names of the call's parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

import torch

from traincheck.sources.recording.context_facts import is_plain, sequence_length
from traincheck.vocab.facts import FactValue

MAX_NESTED_TENSORS = 8
"""Maximum number of tensors taken from one list, tuple or dict. A batch has a handful, a list of all parameters
hundreds."""

PLAIN_TENSORS = frozenset((torch.Tensor, torch.nn.Parameter))
"""Tensor types without behaviour of their own."""

_SCALARS = frozenset((bool, float, type(None)))
"""Types that need no further check. Nearly all arguments have one of them."""


def split_arguments(
    names: tuple[str, ...], args: Sequence[Any], kwargs: Mapping[str, Any] | None
) -> tuple[dict[str, FactValue], list[tuple[str, torch.Tensor]]]:
    """Return plain arguments and tensors by parameter name; an argument without a known name is called `arg3`."""
    values: dict[str, FactValue] = {}
    tensors: list[tuple[str, torch.Tensor]] = []
    named_count = len(names)
    for index, value in enumerate(args):
        name = names[index] if index < named_count else f"arg{index}"
        kind = type(value)
        if kind in PLAIN_TENSORS:
            tensors.append((name, value))
        elif kind in _SCALARS:
            values[name] = value
        # A method with several signatures (`Tensor.to`) is known by one of them only.
        elif name == "dtype" and kind is not torch.dtype:
            add_value(f"arg{index}", value, values, tensors)
        else:
            add_value(name, value, values, tensors)
    if kwargs:
        for name, value in kwargs.items():
            kind = type(value)
            if kind in PLAIN_TENSORS:
                tensors.append((name, value))
            elif kind in _SCALARS:
                values[name] = value
            else:
                add_value(name, value, values, tensors)
    return values, tensors


def add_value(name: str, value: Any, values: dict[str, FactValue], tensors: list[tuple[str, torch.Tensor]]) -> None:
    """Put a plain value into `values` and a tensor into `tensors`, including tensors in a list, a tuple or a dict."""
    kind = type(value)
    if issubclass(kind, torch.Tensor):
        tensors.append((name, value))
    elif is_plain(value):
        values[name] = value
    elif kind is torch.dtype:
        values[name] = str(value).removeprefix("torch.")
    elif issubclass(kind, dict):
        for key, item in islice(dict.items(value), MAX_NESTED_TENSORS):
            if issubclass(type(item), torch.Tensor) and type(key) in (str, int):
                tensors.append((f"{name}[{key}]", item))
    elif issubclass(kind, (list, tuple)):
        values[f"len({name})"] = sequence_length(value)
        base = list if issubclass(kind, list) else tuple
        for index, item in enumerate(islice(base.__iter__(value), MAX_NESTED_TENSORS)):
            if issubclass(type(item), torch.Tensor):
                tensors.append((f"{name}[{index}]", item))
