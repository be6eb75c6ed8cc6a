"""Pending: what is known of tensors only once an accelerator has computed it, and the one transfer that fetches it."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch

elsewhere = False
"""See `as_if_elsewhere`."""


def lies_here(tensor: torch.Tensor) -> bool:
    """Whether there is nothing to wait for when the values of a tensor are looked at."""
    return tensor.is_cpu and not elsewhere


def is_capturing() -> bool:
    """Whether this thread captures a CUDA graph: then nothing may be waited for."""
    return bool(torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing())


class as_if_elsewhere:
    """Within, tensors on the CPU are treated like those of an accelerator: so it is tested where there is none."""

    def __enter__(self) -> None:
        global elsewhere
        elsewhere = True

    def __exit__(self, *_: object) -> None:
        global elsewhere
        elsewhere = False


class Pending(NamedTuple):
    """What some numbers mean, each a tensor of one element (or of several, in a row) that lies on a device."""

    numbers: tuple[torch.Tensor, ...]
    means: Callable[..., Any]


def unlike(old: Any, new: Any) -> bool | Pending:
    """Whether two values differ, each of which may be pending."""
    if Pending not in (type(old), type(new)):
        return bool(old != new)
    one, other = _promised(old), _promised(new)
    numbers = (*one.numbers, *other.numbers)
    if len({number.device for number in numbers}) > 1:
        return True
    count = len(one.numbers)
    return Pending(numbers, lambda *known: one.means(*known[:count]) != other.means(*known[count:]))


def _promised(value: Any) -> Pending:
    return value if type(value) is Pending else Pending((), lambda: value)


def fetched(values: Sequence[Any]) -> list[Any]:
    """The values, with what is pending among them known: one transfer for each device. Call under `unseen`."""
    found = list(values)
    if Pending not in map(type, found):
        return found
    traced = torch._C._get_tracing_state()
    torch._C._set_tracing_state(None)  # what we compute is no part of a graph that the program has traced
    try:
        _fetch(found)
    finally:
        torch._C._set_tracing_state(traced)
    return found


def _fetch(found: list[Any]) -> None:
    """Put what is known in the places of what is pending."""
    places: dict[torch.device, list[int]] = {}
    for place, value in enumerate(found):
        if type(value) is Pending:
            places.setdefault(value.numbers[0].device, []).append(place)
    for device, those in places.items():
        numbers = [number for place in those for number in found[place].numbers]
        told = iter(_transferred(device, numbers))
        for place in those:
            value = found[place]
            found[place] = value.means(*(next(told) for _ in value.numbers))


def _transferred(device: torch.device, numbers: Sequence[torch.Tensor]) -> Iterable[int | float]:
    """Numbers of any type by one transfer: those that are no integers as the bits of their double (on a device that has
    none, of their single) precision."""
    wide, code = (torch.float32, "f") if device.type == "mps" else (torch.float64, "d")
    whole = [not number.is_floating_point() for number in numbers]
    words = {"f": torch.int32, "d": torch.int64}[code]
    kinds: dict[torch.dtype, list[int]] = {}
    for place, number in enumerate(numbers):
        kinds.setdefault(number.dtype, []).append(place)
    order, parts = [], []
    for dtype, places in kinds.items():  # a few, and of each many: what is done to all of a kind is done once
        row = torch.stack([numbers[place].reshape(()) for place in places])
        parts.append(row.to(wide).view(words).to(torch.int64) if dtype.is_floating_point else row.to(torch.int64))
        order.extend(places)
    if device.type in ("cuda", "xpu"):  # the program may have asked for them on another stream
        getattr(torch, device.type).synchronize(device)
    fetches.count += 1
    found: list[int | float] = [0] * len(numbers)
    for place, number in zip(order, torch.cat(parts).tolist(), strict=True):
        found[place] = number if whole[place] else _number(number, code)
    return found


def _number(bits: int, code: str) -> float:
    """The floating point number of these bits."""
    return float(struct.unpack(code, struct.pack({"f": "i", "d": "q"}[code], bits))[0])


class _Fetches:
    """Counts transfers: how often the program has waited for an accelerator because of us."""

    def __init__(self) -> None:
        self.count = 0


fetches = _Fetches()
