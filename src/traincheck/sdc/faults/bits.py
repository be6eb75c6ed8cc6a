"""Bits: the layout of floating point numbers, and tensors in which some elements are as a fault makes them."""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch

from traincheck.sdc.faults.fault import ANY, BITFLIP, EXPONENT, MANTISSA, SCALE, SIGN, STUCK, Fault
from traincheck.sources.tensors.reading import INTEGER_TYPES

MANTISSAS = {torch.float32: 23, torch.bfloat16: 7, torch.float16: 10, torch.float64: 52}
"""Bits of the mantissa, by type. All of the rest but the sign, which is the highest one, are of the exponent."""


def can_be_hit(value: object) -> bool:
    """Whether it is a tensor whose elements a fault can change."""
    return isinstance(value, torch.Tensor) and value.dtype in MANTISSAS and value.numel() > 0 and not value.is_meta


def corrupted(tensor: torch.Tensor, fault: Fault, draws: random.Random, lasting: random.Random) -> torch.Tensor:
    """A copy of `tensor` with the elements that are hit changed: which ones, `draws` says.

    Of a stuck bit `lasting` says it, which is the same on each occasion: a defective lane stays where it is.
    """
    result = tensor.detach().clone(memory_format=torch.contiguous_format)
    flat = result.view(-1)
    count = fault.hits(flat.numel())
    if fault.kind in (BITFLIP, STUCK):
        stream = lasting if fault.kind == STUCK else draws
        places = stream.sample(range(flat.numel()), count)
        _change_bits(flat, places, fault, stream)
    else:
        begins = draws.randrange(flat.numel() - count + 1)
        block = flat[begins : begins + count]
        if fault.kind == SCALE:
            block.mul_(fault.factor)
        else:
            block.zero_()
    return result.view(tensor.shape)


def _change_bits(flat: torch.Tensor, places: Sequence[int], fault: Fault, stream: random.Random) -> None:
    width = flat.element_size() * 8
    among = _bits(flat.dtype, fault.bit)
    masks = [_signed(1 << stream.choice(among), width) for _ in places]
    words = flat.view(INTEGER_TYPES[flat.element_size()])
    index = torch.tensor(places, device=flat.device)
    mask = torch.tensor(masks, dtype=words.dtype, device=flat.device)
    if fault.kind == BITFLIP:
        words[index] ^= mask
    elif fault.to:
        words[index] |= mask
    else:
        words[index] &= ~mask


def _bits(dtype: torch.dtype, which: int | str) -> Sequence[int]:
    """The numbers of the bits among which one is drawn. A number beyond the type's is taken as its highest bit."""
    highest, mantissa = torch.finfo(dtype).bits - 1, MANTISSAS[dtype]
    if isinstance(which, int):
        return (min(which, highest),)
    return {
        ANY: range(highest + 1),
        SIGN: (highest,),
        EXPONENT: range(mantissa, highest),
        MANTISSA: range(mantissa),
    }[which]


def _signed(mask: int, width: int) -> int:
    """As torch's integers, which have a sign, hold it."""
    return mask - (1 << width) if mask >> (width - 1) else mask
