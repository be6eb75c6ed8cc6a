"""Computes fingerprints of tensors on their accelerator, without transferring the tensors.

Note [Fingerprints on a device]
The fingerprint of words w_i of at most 32 bits is the sum of w_i * key_i modulo 2**64. The keys are odd random numbers.
So a change of one word always changes the fingerprint. Other changes leave it unchanged with a probability of at most
2**-32, for changes of sign bits alone, and less for lower bits. A product and a sum read a word in two kernels. A
stronger mixing function would take a dozen, and each kernel reads all of the data again.

A table on the device holds the keys of one chunk. The sum of the chunk number c is a word of a second level, with
the key number c.

Note [Small tensors in a row]
A model has hundreds of small parameters, and every kernel launch costs some microseconds. So small tensors are
concatenated and multiplied together by a dozen kernels. A cumulative sum over the row gives each tensor its own sum,
because sums modulo 2**64 can be subtracted.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch

CHUNK_WORDS = 1 << 22
"""Words processed at a time, with 8 bytes of scratch memory each. A key takes as much."""

SMALL_WORDS = 1 << 16
"""Maximum number of words of a tensor that is put in a row with others."""

_MIX = (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
"""The increment and the two multipliers of splitmix64 (Steele, Lea, Flood, OOPSLA 2014), which makes the keys."""


def device_fingerprints(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return a fingerprint for each tensor: a 0-dimensional int64 tensor on its device.

    The tensors are rows of integers, see `as_integers`. The function works on the CPU as well, for tests. Call inside
    `hidden_from_modes()`.
    """
    sums: list[torch.Tensor] = [None] * len(tensors)
    rows: dict[tuple[torch.device, torch.dtype], _Row] = {}
    chunk_sums: dict[torch.device, _Row] = {}
    for index, elements in enumerate(tensors):
        words = elements.view(torch.int32) if elements.element_size() > 4 else elements
        if words.numel() > SMALL_WORDS:
            chunk_sums.setdefault(words.device, _Row()).add(index, _sums_of_chunks(words))
            continue
        row = rows.setdefault((words.device, words.dtype), _Row())
        row.add(index, [words])
        if row.total > CHUNK_WORDS - SMALL_WORDS:
            _fill_sums(rows.pop((words.device, words.dtype)), sums)
    for row in (*rows.values(), *chunk_sums.values()):
        _fill_sums(row, sums)
    return sums


class _Row:
    """Words of several tensors, which are multiplied together, with the indices and sizes of the tensors."""

    def __init__(self) -> None:
        self.indices: list[int] = []
        self.parts: list[torch.Tensor] = []
        self.sizes: list[int] = []
        self.total = 0

    def add(self, index: int, parts: Sequence[torch.Tensor]) -> None:
        size = sum(part.numel() for part in parts)
        self.indices.append(index)
        self.parts += parts
        self.sizes.append(size)
        self.total += size


def _sums_of_chunks(words: torch.Tensor) -> list[torch.Tensor]:
    """The sum of each chunk of a large tensor, as a tensor of one element."""
    keys = _keys(words.device, CHUNK_WORDS)
    return [(part * keys[: part.numel()]).sum(0, keepdim=True) for part in words.split(CHUNK_WORDS)]


def _fill_sums(row: _Row, sums: list[torch.Tensor]) -> None:
    """Put the sum of each tensor of a row into `sums`."""
    device = row.parts[0].device
    keys = _keys(device, max(row.sizes))
    products = torch.cat(row.parts) * torch.cat([keys[:size] for size in row.sizes])
    if len(row.sizes) == 1:
        sums[row.indices[0]] = products.sum()
        return
    before = torch.nn.functional.pad(products.cumsum(0), (1, 0))
    bounds = before.index_select(0, _bounds(device, tuple(row.sizes)))
    for index, number in zip(row.indices, (bounds[1:] - bounds[:-1]).unbind(), strict=True):
        sums[index] = number


_cached_bounds: dict[tuple[torch.device, tuple[int, ...]], torch.Tensor] = {}
"""Where the tensors of earlier rows begin and end. These numbers stay on the device, because copying them there
synchronizes."""

_MAX_CACHED = 256


def _bounds(device: torch.device, sizes: tuple[int, ...]) -> torch.Tensor:
    """Where the tensors of a row begin and end."""
    cached = _cached_bounds.get((device, sizes))
    if cached is None:
        if len(_cached_bounds) >= _MAX_CACHED:
            _cached_bounds.clear()
        cached = _cached_bounds[device, sizes] = torch.tensor([0, *accumulate(sizes)]).to(device)
    return cached


_key_tables: dict[torch.device, torch.Tensor] = {}


def _keys(device: torch.device, count: int) -> torch.Tensor:
    """At least `count` keys. The table grows by powers of two, up to one chunk."""
    table = _key_tables.get(device)
    if table is None or table.numel() < count:
        size = max(1 << 12, 1 << (count - 1).bit_length())
        numbers = torch.arange(1, size + 1, dtype=torch.int64, device=device)
        table = _key_tables[device] = _splitmix_(numbers.mul_(_signed(_MIX[0]))).bitwise_or_(1)
    return table


def _signed(value: int) -> int:
    """`value` modulo 2**64 as an int64 of torch."""
    value &= 0xFFFFFFFFFFFFFFFF
    return value - (1 << 64) if value >= 1 << 63 else value


def _splitmix_(values: torch.Tensor) -> torch.Tensor:
    """Apply the output function of splitmix64 in place. Masks make the arithmetic shifts of int64 logical."""
    values.bitwise_xor_((values >> 30).bitwise_and_((1 << 34) - 1)).mul_(_signed(_MIX[1]))
    values.bitwise_xor_((values >> 27).bitwise_and_((1 << 37) - 1)).mul_(_signed(_MIX[2]))
    return values.bitwise_xor_((values >> 31).bitwise_and_((1 << 33) - 1))
