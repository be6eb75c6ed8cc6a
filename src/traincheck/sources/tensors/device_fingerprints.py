"""Fingerprints that are computed where tensors lie, on an accelerator, with nothing transferred.

Of a tensor it is the sum over i of splitmix64(word_i + (i + 1) * increment) modulo 2**64, where word_i is the i-th
element's bits: every bit of every element counts, and so does its place.

Note [Small tensors in a row]
A model has hundreds of small parameters, and to start one computation takes an accelerator's driver some microseconds,
whatever it computes. So small tensors are put in a row and mixed together, a dozen computations for all of them; what
is summed up over the row gives each its own sum, for sums modulo 2**64 can be taken from one another.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch

AT_ONCE = 1 << 22
"""Elements that are worked on at a time, with some 24 bytes of scratch for each (in a row 48)."""

SMALL = 1 << 16
"""Elements of a tensor that is put in a row with others."""

_MIX = (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
"""The increment and the two multipliers of splitmix64 (Steele, Lea, Flood, OOPSLA 2014)."""


def device_fingerprints(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """A fingerprint of the elements of each tensor: an int64 of no dimension, on its device.

    They come as `words`, rows of integers. Works on the CPU, too (that is how it is tested). Call under `unseen`.
    """
    found: list[torch.Tensor] = [None] * len(tensors)
    rows: dict[tuple[torch.device, torch.dtype], _Row] = {}
    for place, elements in enumerate(tensors):
        if elements.numel() > SMALL:
            found[place] = _of_large(elements)
            continue
        key = (elements.device, elements.dtype)
        row = rows.setdefault(key, _Row())
        row.add(place, elements)
        if row.total > AT_ONCE - SMALL:
            _sums_of(rows.pop(key), found)
    for row in rows.values():
        _sums_of(row, found)
    return found


class _Row:
    """Small tensors of one type, which are mixed together, with their places among all and their sizes."""

    def __init__(self) -> None:
        self.places: list[int] = []
        self.tensors: list[torch.Tensor] = []
        self.sizes: list[int] = []
        self.total = 0

    def add(self, place: int, elements: torch.Tensor) -> None:
        """Add one to the row."""
        self.places.append(place)
        self.tensors.append(elements)
        self.sizes.append(elements.numel())
        self.total += elements.numel()


def _of_large(elements: torch.Tensor) -> torch.Tensor:
    """The sum of a large tensor, part by part."""
    found = torch.zeros((), dtype=torch.int64, device=elements.device)
    begins = 1
    for part in elements.split(AT_ONCE):
        mixed = torch.arange(begins, begins + part.numel(), dtype=torch.int64, device=part.device)
        found += _splitmix_(mixed.mul_(_signed(_MIX[0])).add_(part)).sum()
        begins += part.numel()
    return found


def _sums_of(row: _Row, found: list[torch.Tensor]) -> None:
    """Put the sum of each tensor of a row to its place."""
    if len(row.tensors) == 1:
        found[row.places[0]] = _of_large(row.tensors[0])
        return
    total, device = row.total, row.tensors[0].device
    begins, ends = _borders(device, tuple(row.sizes))
    counts = ends - begins
    own = torch.arange(1, total + 1, dtype=torch.int64, device=device)
    own.sub_(begins.repeat_interleave(counts, output_size=total)).mul_(_signed(_MIX[0]))
    summed = _splitmix_(own.add_(torch.cat(row.tensors))).cumsum(0)
    before = torch.nn.functional.pad(summed, (1, 0))
    for place, number in zip(row.places, (before[ends] - before[begins]).unbind(), strict=True):
        found[place] = number


_known: dict[tuple[torch.device, tuple[int, ...]], tuple[torch.Tensor, torch.Tensor]] = {}
"""Of rows that were seen: where their tensors begin and end; on the device, for to bring them there it waits."""

_MOST_KNOWN = 256


def _borders(device: torch.device, sizes: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    """Where each tensor of a row begins and ends."""
    found = _known.get((device, sizes))
    if found is None:
        ends = torch.tensor([*accumulate(sizes)])
        if len(_known) >= _MOST_KNOWN:
            _known.clear()
        found = _known[device, sizes] = (ends - torch.tensor(sizes)).to(device), ends.to(device)
    return found


def _signed(value: int) -> int:
    """`value` modulo 2**64 as torch's int64 holds it."""
    value &= 0xFFFFFFFFFFFFFFFF
    return value - (1 << 64) if value >= 1 << 63 else value


def _splitmix_(values: torch.Tensor) -> torch.Tensor:
    """splitmix64's output function on int64, in place (the arithmetic shifts of int64 are masked to be logical)."""
    values.bitwise_xor_((values >> 30).bitwise_and_((1 << 34) - 1)).mul_(_signed(_MIX[1]))
    values.bitwise_xor_((values >> 27).bitwise_and_((1 << 37) - 1)).mul_(_signed(_MIX[2]))
    return values.bitwise_xor_((values >> 31).bitwise_and_((1 << 33) - 1))
