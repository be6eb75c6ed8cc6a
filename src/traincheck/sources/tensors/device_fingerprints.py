"""Computes fingerprints of tensors on their accelerator, without transferring the tensors.

The fingerprint is the sum over i of splitmix64(word_i + (i + 1) * increment) modulo 2**64, where word_i holds the bits
of element i. It depends on every bit and on the position of every element.

Note [Small tensors in a row]
A model has hundreds of small parameters, and every kernel launch costs some microseconds. So small tensors are
concatenated and mixed together by a dozen kernels. A cumulative sum over the row gives each tensor its own sum, because
sums modulo 2**64 can be subtracted.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch

CHUNK_ELEMENTS = 1 << 22
"""Elements processed at a time, with about 24 bytes of scratch memory each (48 in a row)."""

SMALL_ELEMENTS = 1 << 16
"""Maximum number of elements of a tensor that is put in a row with others."""

_MIX = (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
"""The increment and the two multipliers of splitmix64 (Steele, Lea, Flood, OOPSLA 2014)."""


def device_fingerprints(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return a fingerprint for each tensor: a 0-dimensional int64 tensor on its device.

    The tensors are rows of integers, see `as_integers`. The function works on the CPU as well, for tests. Call inside
    `hidden_from_modes()`.
    """
    sums: list[torch.Tensor] = [None] * len(tensors)
    rows: dict[tuple[torch.device, torch.dtype], _Row] = {}
    for index, elements in enumerate(tensors):
        if elements.numel() > SMALL_ELEMENTS:
            sums[index] = _sum_of_large(elements)
            continue
        key = (elements.device, elements.dtype)
        row = rows.setdefault(key, _Row())
        row.add(index, elements)
        if row.total > CHUNK_ELEMENTS - SMALL_ELEMENTS:
            _fill_sums(rows.pop(key), sums)
    for row in rows.values():
        _fill_sums(row, sums)
    return sums


class _Row:
    """Small tensors of one dtype, which are mixed together, with their indices and sizes."""

    def __init__(self) -> None:
        self.indices: list[int] = []
        self.tensors: list[torch.Tensor] = []
        self.sizes: list[int] = []
        self.total = 0

    def add(self, index: int, elements: torch.Tensor) -> None:
        self.indices.append(index)
        self.tensors.append(elements)
        self.sizes.append(elements.numel())
        self.total += elements.numel()


def _sum_of_large(elements: torch.Tensor) -> torch.Tensor:
    """The sum of a large tensor, computed chunk by chunk."""
    total = torch.zeros((), dtype=torch.int64, device=elements.device)
    start = 1
    for part in elements.split(CHUNK_ELEMENTS):
        mixed = torch.arange(start, start + part.numel(), dtype=torch.int64, device=part.device)
        total += _splitmix_(mixed.mul_(_signed(_MIX[0])).add_(part)).sum()
        start += part.numel()
    return total


def _fill_sums(row: _Row, sums: list[torch.Tensor]) -> None:
    """Put the sum of each tensor of a row into `sums`."""
    if len(row.tensors) == 1:
        sums[row.indices[0]] = _sum_of_large(row.tensors[0])
        return
    total, device = row.total, row.tensors[0].device
    starts, ends = _boundaries(device, tuple(row.sizes))
    counts = ends - starts
    own = torch.arange(1, total + 1, dtype=torch.int64, device=device)
    own.sub_(starts.repeat_interleave(counts, output_size=total)).mul_(_signed(_MIX[0]))
    summed = _splitmix_(own.add_(torch.cat(row.tensors))).cumsum(0)
    before = torch.nn.functional.pad(summed, (1, 0))
    for index, number in zip(row.indices, (before[ends] - before[starts]).unbind(), strict=True):
        sums[index] = number


_cached_boundaries: dict[tuple[torch.device, tuple[int, ...]], tuple[torch.Tensor, torch.Tensor]] = {}
"""Start and end offsets of the tensors of earlier rows. They stay on the device, because copying them there
synchronizes."""

_MAX_CACHED = 256


def _boundaries(device: torch.device, sizes: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    """The start and end offsets of the tensors of a row."""
    cached = _cached_boundaries.get((device, sizes))
    if cached is None:
        ends = torch.tensor([*accumulate(sizes)])
        if len(_cached_boundaries) >= _MAX_CACHED:
            _cached_boundaries.clear()
        cached = _cached_boundaries[device, sizes] = (ends - torch.tensor(sizes)).to(device), ends.to(device)
    return cached


def _signed(value: int) -> int:
    """`value` modulo 2**64 as an int64 of torch."""
    value &= 0xFFFFFFFFFFFFFFFF
    return value - (1 << 64) if value >= 1 << 63 else value


def _splitmix_(values: torch.Tensor) -> torch.Tensor:
    """Apply the output function of splitmix64 in place. Masks make the arithmetic shifts of int64 logical."""
    values.bitwise_xor_((values >> 30).bitwise_and_((1 << 34) - 1)).mul_(_signed(_MIX[1]))
    values.bitwise_xor_((values >> 27).bitwise_and_((1 << 37) - 1)).mul_(_signed(_MIX[2]))
    return values.bitwise_xor_((values >> 31).bitwise_and_((1 << 33) - 1))
