"""The optimizers of bitsandbytes: the algorithms that they state, their settings, and their states in 8 bits.

Its states have numbers, not names: `state1` is the first moment, `state2` the second. A state in 8 bits has a code for
each element (`state1`), the value of each code (`qmap1`), and a scale for each block of elements (`absmax1`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch.optim import Optimizer

TOLERANCE = 1e-4
"""Kernels on a GPU divide in less than single precision. A result may be off by this share of an element's change."""

_PACKAGE = "bitsandbytes."

_CLASS = re.compile("(?:Paged)?(AdamW|Lion)(?:8bit|32bit)?")
"""Classes whose weight decay is documented: it is decoupled. That of `Adam`, with the same kernels, is not."""

_NAMES = {"state1": "exp_avg", "state2": "exp_avg_sq"}  # which the algorithms read

_BLOCKS = (256, 2048)
"""Elements in a block, of this version and of older ones."""


class ReadableState(NamedTuple):
    """The state of a parameter under torch's names. Entries in `coarse` keep few bits of what an update computes."""

    entries: dict[str, Any]
    coarse: frozenset[str] = frozenset()


def stated_algorithm(optimizer: Optimizer, step: Any) -> str:
    """The name of the algorithm that an optimizer of bitsandbytes states; empty for every other optimizer. `step` is
    the function that updates."""
    stated = _CLASS.fullmatch(type(optimizer).__name__)
    if stated is None or not _is_of_package(type(optimizer)) or not _is_of_package(step):
        return ""
    options = getattr(optimizer, "args", None)
    does_more = getattr(options, "skip_zeros", False) or getattr(options, "max_unorm", 0.0)
    return "" if does_more else stated[1]


def settings_of(optimizer: Optimizer, group: int, tensor: torch.Tensor) -> dict[str, Any]:
    """The settings of a parameter: those of its group, and of bitsandbytes those that the program overrides for it."""
    entry = optimizer.param_groups[group]
    settings = {key: value for key, value in entry.items() if key != "params"}
    if _is_of_package(type(optimizer)) and hasattr(optimizer, "get_config"):
        index = next(index for index, parameter in enumerate(entry["params"]) if parameter is tensor)
        settings.update(optimizer.get_config(group, index, entry))
    return settings


def readable_state(state: Mapping[str, Any], elements: slice | None) -> ReadableState:
    """The state under torch's names, with the numbers that codes stand for: those of `elements` in their order in one
    dimension, or those of the whole tensor. The state of another library is returned as it is."""
    if "state1" not in state:
        return ReadableState(dict(state))
    entries, coarse = {_NAMES.get(name, name): value for name, value in state.items()}, set()
    for name in _NAMES.values() & entries.keys():
        if entries[name].dtype is torch.uint8:
            number = 1 if name == "exp_avg" else 2
            entries[name] = _decoded(entries[name], state[f"qmap{number}"], state[f"absmax{number}"], elements)
            coarse.add(name)
    return ReadableState(entries, frozenset(coarse))


def _decoded(codes: torch.Tensor, values: torch.Tensor, scales: torch.Tensor, elements: slice | None) -> torch.Tensor:
    """The numbers that codes stand for; not a number if the blocks have an unknown size, so that nothing is judged."""
    begin, end, _ = (elements or slice(None)).indices(codes.numel())
    size = next((size for size in _BLOCKS if -(-codes.numel() // size) == scales.numel()), 0)
    if size:
        block = torch.arange(begin, end, device=codes.device) // size
        numbers = values[codes.reshape(-1)[begin:end].int()] * scales[block]
    else:
        numbers = torch.full((end - begin,), math.nan, device=codes.device)
    return numbers if elements is not None else numbers.reshape(codes.shape)


def _is_of_package(definition: Any) -> bool:
    return str(definition.__module__).startswith(_PACKAGE)
