"""Values that an accelerator has yet to compute, and the single transfer that fetches many of them."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch

simulated = False
"""True inside `simulated_accelerator`."""


def is_on_host(tensor: torch.Tensor) -> bool:
    """Whether reading the values of a tensor needs no wait for a device."""
    return tensor.is_cpu and not simulated


def is_capturing() -> bool:
    """Whether this thread captures a CUDA graph. The program must not synchronize while it does."""
    return bool(torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing())


class simulated_accelerator:
    """Inside this context, CPU tensors are treated like tensors on an accelerator. It is for tests without one."""

    def __enter__(self) -> None:
        global simulated
        simulated = True

    def __exit__(self, *_: object) -> None:
        global simulated
        simulated = False


class DeferredValue(NamedTuple):
    """A value computed by `interpret` from numbers that lie on a device, once they are fetched. Each number is a tensor
    of one element."""

    numbers: tuple[torch.Tensor, ...]
    interpret: Callable[..., Any]


def not_equal(old: Any, new: Any) -> bool | DeferredValue:
    """Whether two values differ. If one of them is deferred, the result is deferred."""
    if DeferredValue not in (type(old), type(new)):
        return bool(old != new)
    left, right = _as_deferred(old), _as_deferred(new)
    numbers = (*left.numbers, *right.numbers)
    if len({number.device for number in numbers}) > 1:
        return True
    count = len(left.numbers)
    return DeferredValue(
        numbers, lambda *fetched: left.interpret(*fetched[:count]) != right.interpret(*fetched[count:])
    )


def _as_deferred(value: Any) -> DeferredValue:
    return value if type(value) is DeferredValue else DeferredValue((), lambda: value)


def fetch_values(values: Sequence[Any]) -> list[Any]:
    """Return the values, with every deferred value fetched: one transfer for each device. Call inside
    `hidden_from_modes()`."""
    results = list(values)
    if DeferredValue not in map(type, results):
        return results
    traced = torch._C._get_tracing_state()
    torch._C._set_tracing_state(None)  # the program's traced graph must not contain TrainCheck's operations
    try:
        _fetch(results)
    finally:
        torch._C._set_tracing_state(traced)
    return results


def _fetch(values_to_fill: list[Any]) -> None:
    """Replace deferred values by fetched values, in place."""
    indices_by_device: dict[torch.device, list[int]] = {}
    for index, deferred in enumerate(values_to_fill):
        if type(deferred) is DeferredValue:
            indices_by_device.setdefault(deferred.numbers[0].device, []).append(index)
    for device, indices in indices_by_device.items():
        numbers = [number for index in indices for number in values_to_fill[index].numbers]
        fetched = iter(_transfer(device, numbers))
        for index in indices:
            deferred = values_to_fill[index]
            values_to_fill[index] = deferred.interpret(*(next(fetched) for _ in deferred.numbers))


def _transfer(device: torch.device, numbers: Sequence[torch.Tensor]) -> Iterable[int | float]:
    """Fetch numbers of any dtype by one transfer. Floating point numbers travel as the bits of their double precision,
    or single precision on a device without double."""
    wide, code = (torch.float32, "f") if device.type == "mps" else (torch.float64, "d")
    is_integer = [not number.is_floating_point() for number in numbers]
    words = {"f": torch.int32, "d": torch.int64}[code]
    indices_by_dtype: dict[torch.dtype, list[int]] = {}
    for index, number in enumerate(numbers):
        indices_by_dtype.setdefault(number.dtype, []).append(index)
    order, parts = [], []
    # There are few dtypes with many numbers each, so each operation handles all numbers of a dtype.
    for dtype, indices in indices_by_dtype.items():
        row = torch.stack([numbers[index].reshape(()) for index in indices])
        parts.append(row.to(wide).view(words).to(torch.int64) if dtype.is_floating_point else row.to(torch.int64))
        order.extend(indices)
    if device.type in ("cuda", "xpu"):  # the program may compute them on another stream
        getattr(torch, device.type).synchronize(device)
    fetches.count += 1
    results: list[int | float] = [0] * len(numbers)
    for index, number in zip(order, torch.cat(parts).tolist(), strict=True):
        results[index] = number if is_integer[index] else _float_from_bits(number, code)
    return results


def _float_from_bits(bits: int, code: str) -> float:
    """The floating point number with these bits."""
    return float(struct.unpack(code, struct.pack({"f": "i", "d": "q"}[code], bits))[0])


class _Fetches:
    """Counts transfers, that is, how often TrainCheck made the program wait for an accelerator."""

    def __init__(self) -> None:
        self.count = 0


fetches = _Fetches()
