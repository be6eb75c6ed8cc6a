"""Values that an accelerator has yet to compute, and the single transfer that fetches many of them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
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
    device = numbers[0].device
    for number in numbers:
        if number.device != device:
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
    return Fetch(values).wait() if DeferredValue in map(type, values) else list(values)


class Fetch:
    """A transfer of deferred values, one for each device. It starts at once, and the program goes on meanwhile. Call
    its methods inside `hidden_from_modes()`.

    `streams` are the streams other than the current one that compute some of the values, by device.
    """

    def __init__(self, values: Sequence[Any], streams: Mapping[torch.device, Collection[Any]] | None = None) -> None:
        self._values = list(values)
        indices_by_device: dict[torch.device, list[int]] = {}
        for index, value in enumerate(self._values):
            if type(value) is DeferredValue:
                indices_by_device.setdefault(value.numbers[0].device, []).append(index)
        self._transfers: list[tuple[list[int], list[int], _Transfer]] = []  # with the ids of the numbers
        traced = torch._C._get_tracing_state()
        torch._C._set_tracing_state(None)  # the program's traced graph must not contain TrainCheck's operations
        try:
            for device, indices in indices_by_device.items():
                # Several values may need the same number, such as a norm: it travels once.
                numbers = {id(number): number for index in indices for number in self._values[index].numbers}
                transfer = _Transfer(device, [*numbers.values()], streams and streams.get(device))
                self._transfers.append((indices, [*numbers], transfer))
        finally:
            torch._C._set_tracing_state(traced)

    @property
    def size(self) -> int:
        """The number of numbers on the way."""
        return sum(len(ids) for _, ids, _ in self._transfers)

    def wait(self) -> list[Any]:
        """Wait until all values have arrived, and return them."""
        results, transfers = self._values, self._transfers
        self._transfers = []
        for indices, ids, transfer in transfers:
            fetched = dict(zip(ids, transfer.wait(), strict=True))
            for index in indices:
                deferred = results[index]
                results[index] = deferred.interpret(*[fetched[id(number)] for number in deferred.numbers])
        return results


class _Transfer:
    """Fetches numbers of any dtype from one device. Floating point numbers travel as the bits of their double
    precision, or single precision on a device without double."""

    def __init__(self, device: torch.device, numbers: Sequence[torch.Tensor], streams: Collection[Any] | None) -> None:
        self._wide, self._words = (torch.float32, torch.int32) if device.type == "mps" else (torch.float64, torch.int64)
        if device.type == "cuda":
            _wait_for_streams(device, streams)
        elif device.type == "xpu":  # the program may compute them on another stream
            torch.xpu.synchronize(device)
        indices_by_dtype: dict[torch.dtype, list[int]] = {}
        for index, number in enumerate(numbers):
            indices_by_dtype.setdefault(number.dtype, []).append(index)
        self._order: list[int] = []
        self._integers: list[bool] = []  # by place in the row
        parts = []
        # There are few dtypes with many numbers each, so each operation handles all numbers of a dtype.
        for dtype, indices in indices_by_dtype.items():
            row = torch.stack([number.reshape(()) if (number := numbers[index]).dim() else number for index in indices])
            floating = dtype.is_floating_point
            parts.append(row.to(self._wide).view(self._words).to(torch.int64) if floating else row.to(torch.int64))
            self._order.extend(indices)
            self._integers += [not floating] * len(indices)
        fetches.count += 1
        self._row = torch.cat(parts)
        self._arrived: torch.cuda.Event | None = None
        if device.type == "cuda":
            # Only a copy to pinned memory does not wait. The event shows when it is complete.
            pinned = torch.empty(self._row.shape, dtype=torch.int64, device="cpu", pin_memory=True)
            self._row = pinned.copy_(self._row, non_blocking=True)
            self._arrived = torch.cuda.Event()
            self._arrived.record(torch.cuda.current_stream(device))

    def wait(self) -> list[int | float]:
        """Wait for the numbers, and return them in their original order."""
        if self._arrived is not None and not self._arrived.query():
            self._arrived.synchronize()
        results: list[int | float] = [0] * len(self._order)
        floats = self._row.to(self._words).view(self._wide).tolist()
        for index, is_integer, number, real in zip(
            self._order, self._integers, self._row.tolist(), floats, strict=True
        ):
            results[index] = number if is_integer else real
        return results


def _wait_for_streams(device: torch.device, streams: Collection[Any] | None) -> None:
    """Let the current stream wait for the other ones that compute values; for all of them if they are not known."""
    if streams is None:
        torch.cuda.synchronize(device)
        return
    current = torch.cuda.current_stream(device)
    for stream in streams:
        if stream != current:
            current.wait_stream(stream)


class _Fetches:
    """Counts transfers, that is, how often TrainCheck made the program wait for an accelerator."""

    def __init__(self) -> None:
        self.count = 0


fetches = _Fetches()
