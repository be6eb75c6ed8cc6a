"""Reads some elements of tensors, spread over each of them, to measure how large numbers are at some steps."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from traincheck.sources.tensors.reading import PLAIN, first_elements, local_tensor

MAX_ELEMENTS = 1024

OFTEN, SELDOM, LAST = 5, 50, 100_000
MEASURED_STEPS = frozenset(
    (*range(OFTEN + 1), *range(SELDOM, LAST, SELDOM), *(1 << exponent for exponent in range(64)))
)
"""The steps at which numbers are measured: the first ones, powers of two, and one in `SELDOM` up to `LAST`."""


def readable(tensor: torch.Tensor) -> torch.Tensor | None:
    """The tensor if it is plain, and has floating point numbers in memory; otherwise None. Call inside
    `hidden_from_modes()`."""
    if type(tensor) not in PLAIN or not tensor.is_floating_point() or not tensor.numel():
        return None
    return local_tensor(tensor)


def spread_elements(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """A copy of some elements of each tensor, in single precision at least. Call inside `hidden_from_modes()`."""
    samples = []
    for tensor in tensors:
        flat = tensor.detach().reshape(-1) if tensor.is_contiguous() else first_elements(tensor.detach())
        every = -(-flat.numel() // MAX_ELEMENTS) | 1  # an odd stride visits all columns of a matrix
        samples.append(flat[::every].to(torch.promote_types(tensor.dtype, torch.float32)))
    return torch.cat(samples)
