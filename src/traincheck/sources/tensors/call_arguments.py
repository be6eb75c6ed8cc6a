"""Given: what is among the arguments of a call, plain values and tensors, by the names of its parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

import torch

from traincheck.sources.recording.context_facts import length, plain
from traincheck.vocab.facts import FactValue

MOST_INSIDE = 8
"""Tensors told of one list, tuple or dict: a batch has a handful, a list of all parameters hundreds."""

PLAIN_TENSORS = frozenset((torch.Tensor, torch.nn.Parameter))
"""Types of tensors that are no more than that."""

_QUICK = frozenset((bool, float, type(None)))
"""Types of which nothing else has to be asked: nearly all arguments are of one of these."""


def sorted_arguments(
    names: tuple[str, ...], args: Sequence[Any], kwargs: Mapping[str, Any] | None
) -> tuple[dict[str, FactValue], list[tuple[str, torch.Tensor]]]:
    """Plain arguments and tensors by the names of their parameters; `arg3` where none is known."""
    told: dict[str, FactValue] = {}
    tensors: list[tuple[str, torch.Tensor]] = []
    known = len(names)
    for place, value in enumerate(args):
        name = names[place] if place < known else f"arg{place}"
        kind = type(value)
        if kind in PLAIN_TENSORS:
            tensors.append((name, value))
        elif kind in _QUICK:
            told[name] = value
        # Methods that take several things in one place (`Tensor.to`) are known by one signature only.
        elif name == "dtype" and kind is not torch.dtype:
            sort_value(f"arg{place}", value, told, tensors)
        else:
            sort_value(name, value, told, tensors)
    if kwargs:
        for name, value in kwargs.items():
            kind = type(value)
            if kind in PLAIN_TENSORS:
                tensors.append((name, value))
            elif kind in _QUICK:
                told[name] = value
            else:
                sort_value(name, value, told, tensors)
    return told, tensors


def sort_value(name: str, value: Any, told: dict[str, FactValue], tensors: list[tuple[str, torch.Tensor]]) -> None:
    """Put a plain value into `told` and a tensor into `tensors`, also those inside a list, a tuple or a dict."""
    kind = type(value)
    if issubclass(kind, torch.Tensor):
        tensors.append((name, value))
    elif plain(value):
        told[name] = value
    elif kind is torch.dtype:
        told[name] = str(value).removeprefix("torch.")
    elif issubclass(kind, dict):
        for key, item in islice(dict.items(value), MOST_INSIDE):
            if issubclass(type(item), torch.Tensor) and type(key) in (str, int):
                tensors.append((f"{name}[{key}]", item))
    elif issubclass(kind, (list, tuple)):
        told[f"len({name})"] = length(value)
        base = list if issubclass(kind, list) else tuple
        for place, item in enumerate(islice(base.__iter__(value), MOST_INSIDE)):
            if issubclass(type(item), torch.Tensor):
                tensors.append((f"{name}[{place}]", item))
