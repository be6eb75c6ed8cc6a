"""Change bits of floating point tensors as a hardware fault would."""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch

from traincheck.sdc.faults.fault import ANY, BITFLIP, EXPONENT, MANTISSA, SCALE, SIGN, STUCK, Fault
from traincheck.sources.tensors.reading import INTEGER_TYPES

MANTISSAS = {torch.float32: 23, torch.bfloat16: 7, torch.float16: 10, torch.float64: 52}
"""Number of mantissa bits by type. The highest bit is the sign; the others belong to the exponent."""


def can_be_hit(value: object) -> bool:
    """Whether `value` is a tensor whose elements a fault can change."""
    return isinstance(value, torch.Tensor) and value.dtype in MANTISSAS and value.numel() > 0 and not value.is_meta


def corrupted(tensor: torch.Tensor, fault: Fault, draws: random.Random, lasting: random.Random) -> torch.Tensor:
    """Return a copy of `tensor` with some elements changed; `draws` selects them.

    For a stuck bit, `lasting` selects them: it is equal on each occasion, as a defective lane stays in place.
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


def _signed(mask: int, width: int) -> int:
    """Return the mask as a signed integer, which torch requires."""
    return mask - (1 << width) if mask >> (width - 1) else mask
