"""Two tensors have the same bits where their memory says so, whatever the numbers are and however they lie."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from traincheck.sources.tensors.reading import INTEGER_TYPES, as_integers, same_bits

TYPES = [
    *(torch.bool, torch.uint8, torch.int16, torch.int64),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.float8_e4m3fn),
    *(torch.complex64, torch.complex128),
]


def made(kind: torch.dtype, *shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(len(shape))
    size = kind.itemsize
    count = int(torch.Size(shape).numel()) * size
    if kind is torch.bool:
        return torch.randint(0, 2, shape, generator=generator).bool()
    return torch.randint(0, 256, (count,), dtype=torch.uint8, generator=generator).view(kind).view(shape)


@pytest.mark.parametrize("kind", TYPES, ids=str)
@given(shape=st.lists(st.integers(0, 5), min_size=1, max_size=3), bit=st.integers(0), turned=st.booleans())
def test_one_bit_makes_the_difference(kind: torch.dtype, shape: list[int], bit: int, turned: bool) -> None:
    tensor = made(kind, *shape)
    other = tensor.clone()
    if turned:
        other = other.transpose(0, -1).contiguous().transpose(0, -1)  # the same, and lies otherwise
    assert same_bits(tensor, other) and same_bits(other, tensor)
    assert len(as_integers(tensor)) == tensor.numel() * (2 if tensor.is_complex() else 1)
    if tensor.numel() and kind is not torch.bool:
        changed = tensor.clone()
        memory = changed.view(-1).view(torch.uint8)
        memory[bit // 8 % len(memory)] ^= 1 << bit % 8
        assert not same_bits(changed, other) and not same_bits(other, changed)


def test_equal_values_with_different_bits_differ() -> None:
    zero, nothing = torch.zeros(()), torch.tensor(torch.nan)
    assert not same_bits(zero, -zero) and same_bits(nothing, nothing.clone())
    assert not same_bits(zero, torch.zeros(1)) and not same_bits(zero, zero.double())
    assert set(INTEGER_TYPES) == {1, 2, 4, 8}
