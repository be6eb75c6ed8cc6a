"""Equal tensors have equal fingerprints and one changed bit changes them, on the CPU and on a device."""

from __future__ import annotations

import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from traincheck.sources.tensors.deferred_values import simulated_accelerator
from traincheck.sources.tensors.reading import fingerprints, hidden_from_modes, states

BITS = {
    torch.float32: torch.int32,
    torch.float64: torch.int64,
    torch.float16: torch.int16,
    torch.bfloat16: torch.int16,
    torch.int64: torch.int64,
    torch.int32: torch.int32,
    torch.int16: torch.int16,
    torch.uint8: torch.uint8,
    torch.complex64: torch.int64,
}
"""Dtypes, and the integers whose bits they share."""

shapes = st.lists(st.integers(0, 6), max_size=3).map(tuple)


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    """Any bits, in any dtype and shape."""
    dtype, shape, seed = draw(st.sampled_from(list(BITS))), draw(shapes), draw(st.integers(0, 2**31))
    generator = torch.Generator().manual_seed(seed)
    info = torch.iinfo(BITS[dtype])
    size = 1
    for length in shape:
        size *= length
    bits = torch.randint(info.min, info.max, (size,), generator=generator, dtype=BITS[dtype])
    return bits.view(dtype).reshape(shape)


def digests(tensor: torch.Tensor) -> tuple[object, object]:
    with hidden_from_modes():
        here = fingerprints([tensor])[0]
        with simulated_accelerator():
            return here, fingerprints([tensor])[0]


@given(tensors())
def test_equal_tensors_have_equal_fingerprints(tensor: torch.Tensor) -> None:
    assert digests(tensor) == digests(tensor.clone())


@given(tensors(), st.data())
def test_one_bit_changes_the_fingerprint(tensor: torch.Tensor, data: st.DataObject) -> None:
    assume(tensor.numel())
    other = tensor.clone()
    bits = other.view(-1).view(BITS[tensor.dtype])
    index = data.draw(st.integers(0, bits.numel() - 1))
    width = bits.element_size() * 8
    bit = data.draw(st.integers(0, width - 1))
    mask = 1 << bit
    bits[index] ^= mask - (1 << width) if bit == width - 1 and bits.dtype != torch.uint8 else mask
    for ours, theirs in zip(digests(tensor), digests(other), strict=True):
        assert ours != theirs


@given(tensors(), st.data())
def test_two_exchanged_elements_change_the_fingerprint(tensor: torch.Tensor, data: st.DataObject) -> None:
    assume(tensor.numel() > 1)
    bits = tensor.reshape(-1).view(BITS[tensor.dtype])
    first, other = data.draw(st.lists(st.integers(0, bits.numel() - 1), min_size=2, max_size=2, unique=True))
    assume(bits[first] != bits[other])
    swapped = bits.clone()
    swapped[first], swapped[other] = bits[other].item(), bits[first].item()
    for ours, theirs in zip(digests(bits), digests(swapped), strict=True):
        assert ours != theirs


@given(tensors())
def test_shape_changes_the_fingerprint(tensor: torch.Tensor) -> None:
    for other in (tensor.unsqueeze(0), tensor.flatten() if tensor.dim() != 1 else tensor.unsqueeze(1)):
        for ours, theirs in zip(digests(tensor), digests(other), strict=True):
            assert ours != theirs


@given(tensors())
def test_memory_layout_does_not_change_the_fingerprint(tensor: torch.Tensor) -> None:
    turned = tensor.permute(tuple(reversed(range(tensor.dim()))))
    assert digests(turned) == digests(turned.contiguous())


@given(st.lists(tensors(), max_size=5), st.lists(st.booleans(), max_size=5))
def test_states_agree_with_the_values(some: list[torch.Tensor], cleared: list[bool]) -> None:
    for tensor, clear in zip(some, cleared, strict=False):
        if clear:
            tensor.zero_()
    with hidden_from_modes():
        reported = states([*some, None])
    assert reported == [*("some" if bool((tensor != 0).any()) else "zero" for tensor in some), "none"]
