"""Change bits of floating point tensors as a hardware fault would.

Note [Intermittent defects]

The kind `intermittent` combines what two studies report. Tung et al. ("The Anatomy of Silent Data Corruption", arXiv
2605.04213) injected stuck-at faults into the gates of a simulated data-center GPU: 1.01 % of the corruptions are NaN or
infinite, fewer than 40 % of the bit flips change a single bit, and the addresses of wrong elements are periodic.
Vavelidou et al. ("ITHICA", arXiv 2605.15638) tested over 3,000 CPU servers: the most pernicious defects answer
inconsistently, so the same instruction with the same inputs is sometimes right and sometimes wrong.

So the stride and the first address are drawn once for each target, and each execution draws whether it is wrong, which
repetitions of the stride it hits, and the wrong values. The studies' abstracts leave these parts open, and they are
assumptions here: the share of wrong executions, the candidate strides and the number of elements, the number of bits
in the other 65 % of the flips, that low bits flip more often, and the share of zeros. Summaries of the first study
support the last two and the strides 2 to 16.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import torch

from traincheck.sdc.faults.fault import ANY, BITFLIP, EXPONENT, INTERMITTENT, MANTISSA, SIGN, STUCK, Fault
from traincheck.sources.tensors.reading import INTEGER_TYPES

MANTISSAS = {torch.float32: 23, torch.bfloat16: 7, torch.float16: 10, torch.float64: 52}
"""Number of mantissa bits by type. The highest bit is the sign; the others belong to the exponent."""

STRIDES = (2, 4, 8, 16, 32)
"""Distances of wrong elements of an intermittent defect; 32 threads are a warp."""
ONE_BIT = 0.35
"""Share of flips that change one bit: below the 40 % of Note [Intermittent defects]."""
SEVERAL_BITS = range(2, 9)
"""The number of changed bits in the other flips, all equally likely."""


def can_be_hit(value: object) -> bool:
    """Whether `value` is a tensor whose elements a fault can change."""
    return isinstance(value, torch.Tensor) and value.dtype in MANTISSAS and value.numel() > 0 and not value.is_meta


def corrupted(
    tensor: torch.Tensor, fault: Fault, draws: random.Random, lasting: random.Random
) -> tuple[torch.Tensor, int]:
    """Return a copy of `tensor` with some elements changed, and their number; `draws` selects them.

    `lasting` is equal on each occasion, as a defective lane stays in place: it selects the elements of a stuck bit,
    and stride and first address of an intermittent defect.
    """
    result = tensor.detach().clone(memory_format=torch.contiguous_format)
    flat = result.view(-1)
    count = fault.hits(flat.numel())
    if fault.kind == INTERMITTENT:
        lane = _lane(fault, flat.numel(), lasting)
        count = min(count, len(lane))
        begin = draws.randrange(len(lane) - count + 1)
        _change_values(flat, lane[begin : begin + count], fault, draws)
    else:
        stream = lasting if fault.kind == STUCK else draws
        _change_bits(flat, stream.sample(range(flat.numel()), count), fault, stream)
    return result.view(tensor.shape), count


def _lane(fault: Fault, size: int, lasting: random.Random) -> range:
    """Return the addresses that an intermittent defect can hit."""
    stride = lasting.choice(STRIDES) if fault.stride is None else fault.stride
    return range(lasting.randrange(min(stride, size)), size, stride)


def _change_values(flat: torch.Tensor, places: Sequence[int], fault: Fault, draws: random.Random) -> None:
    """Replace each element by zero, by a value that is not finite, or by itself with some flipped bits."""
    bits, mantissa = _bits(flat.dtype, fault.bit), _bits(flat.dtype, MANTISSA)
    flipped: dict[int, tuple[int, int]] = {}
    for place in places:
        if draws.random() < fault.nonfinite:
            flat[place] = draws.choice((math.nan, math.inf, -math.inf))
        elif draws.random() < fault.zeros:
            flat[place] = 0.0
        else:
            number = fault.flips or (1 if draws.random() < ONE_BIT else draws.choice(SEVERAL_BITS))
            flipped[place] = _mask(bits, number, draws), _mask(mantissa, number, draws)
    if not flipped:
        return
    words, index = flat.view(INTEGER_TYPES[flat.element_size()]), torch.tensor([*flipped], device=flat.device)
    masks, finite_masks = (_words(each, words) for each in zip(*flipped.values(), strict=True))
    before = flat[index]
    words[index] ^= masks
    # A flip that fills the exponent would raise the share of values that are not finite.
    lost = before.isfinite() & ~flat[index].isfinite()
    words[index] = torch.where(lost, words[index] ^ masks ^ finite_masks, words[index])


def _mask(bits: Sequence[int], number: int, draws: random.Random) -> int:
    """Return a mask of `number` different bits, of which lower ones are likelier, by linearly falling weights."""
    weights = {bit: len(bits) - rank for rank, bit in enumerate(bits)}
    # The first of exponential times with these rates: a weighted draw without replacement.
    times = {bit: draws.expovariate(weight) for bit, weight in weights.items()}
    return sum(1 << bit for bit in sorted(times, key=times.__getitem__)[:number])


def _change_bits(flat: torch.Tensor, places: Sequence[int], fault: Fault, stream: random.Random) -> None:
    among = _bits(flat.dtype, fault.bit)
    masks = [1 << stream.choice(among) for _ in places]
    words = flat.view(INTEGER_TYPES[flat.element_size()])
    index, mask = torch.tensor(places, device=flat.device), _words(masks, words)
    if fault.kind == BITFLIP:
        words[index] ^= mask
    elif fault.to:
        words[index] |= mask
    else:
        words[index] &= ~mask


def _bits(dtype: torch.dtype, which: int | str) -> Sequence[int]:
    """Return the numbers of the candidate bits. A number beyond the type's range means its highest bit."""
    highest, mantissa = torch.finfo(dtype).bits - 1, MANTISSAS[dtype]
    if isinstance(which, int):
        return (min(which, highest),)
    return {
        ANY: range(highest + 1),
        SIGN: (highest,),
        EXPONENT: range(mantissa, highest),
        MANTISSA: range(mantissa),
    }[which]


def _words(masks: Sequence[int], like: torch.Tensor) -> torch.Tensor:
    """Return masks as signed integers, which torch requires, of the type and device of `like`."""
    width = like.element_size() * 8
    signed = [mask - (1 << width) if mask >> (width - 1) else mask for mask in masks]
    return torch.tensor(signed, dtype=like.dtype, device=like.device)
