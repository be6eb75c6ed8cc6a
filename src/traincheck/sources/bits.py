"""Bits: the memory of tensors as integers. What is not a number, and zeros of either sign, are compared as they are."""

from __future__ import annotations

import torch

WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""The integers by which elements of so many bytes are seen."""


def words(tensor: torch.Tensor) -> torch.Tensor:
    """The elements in a row, as integers; two for a complex number."""
    flat = tensor.detach().contiguous().reshape(-1)
    if flat.is_complex():
        flat = torch.view_as_real(flat).reshape(-1)
    return flat.view(WORDS[flat.element_size()])


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors of a device have one type, one shape, and the same bits."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if one.stride() == other.stride() and one.element_size() in WORDS:  # as they lie: nothing is copied
        type_of_words = WORDS[one.element_size()]
        return bool(torch.equal(one.detach().view(type_of_words), other.detach().view(type_of_words)))
    return bool(torch.equal(words(one), words(other)))
