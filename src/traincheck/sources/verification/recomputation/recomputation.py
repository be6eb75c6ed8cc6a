"""Compares what activation checkpointing computes in the backward with what it computed first.

Note [What is compared]
`checkpoint(use_reentrant=False)` saves the same tensors for the backward in both computations, in one order; they are
compared. Its recomputation ends with the last of them. `use_reentrant=True` compares the outputs of modules inside and
of the whole function. Only floating-point and boolean tensors with several elements count: kernels also save scalars
and bytes (states of random generators, workspaces) whose content they never read. Buffers do not count, because batch
normalisation saves its running statistics without a use for them. If a buffer matters, results differ as well.

Equal bits agree. A device may add in another order each time, so a difference of rounding is not judged.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import nn

from traincheck.sources.tensors.deferred_values import fetch_values
from traincheck.sources.tensors.reading import (
    PLAIN,
    Fingerprint,
    deferred_fingerprints,
    dtype_name,
    hidden_from_modes,
    local_tensor,
)
from traincheck.sources.tensors.spread_elements import spread_elements
from traincheck.vocab.verification import AGREES, DISAGREES, UNDECIDED

ROUNDING = 32
"""Units of rounding of the largest element, up to which a difference is not judged."""


class Print(NamedTuple):
    """A result: its form, the fingerprint of its bits, some elements, and the module that computed it."""

    dtype: torch.dtype
    shape: torch.Size
    bits: Fingerprint
    elements: torch.Tensor
    module: nn.Module | None


class Pair(NamedTuple):
    """A result as it was computed first, and again."""

    first: Print
    again: Print


class Difference(NamedTuple):
    """The verdict about a recomputation, what was seen, and the module that computed the first difference."""

    verdict: str
    found: str = ""
    module: nn.Module | None = None


def print_of(tensor: torch.Tensor, module: nn.Module | None) -> Print | None:
    """Return the print of a result as it is now; None if it does not count, see Note [What is compared]."""
    if type(tensor) not in PLAIN or not (tensor.is_floating_point() or tensor.dtype == torch.bool):
        return None
    with hidden_from_modes():
        dense = local_tensor(tensor)
        if dense is None or dense.numel() < 2:
            return None
        (bits,) = deferred_fingerprints([dense])
        return Print(tensor.dtype, tensor.shape, bits, spread_elements([dense.contiguous()]), module)


def compare_prints(pairs: Sequence[Pair]) -> Difference:
    """Return the verdict about pairs in the order of their computation. Waits for accelerators."""
    with hidden_from_modes():
        bits = fetch_values([print_.bits for pair in pairs for print_ in pair])
        undecided = None
        for (first, again), bits_first, bits_again in zip(pairs, bits[::2], bits[1::2], strict=True):
            if (first.dtype, first.shape) != (again.dtype, again.shape):
                forms = [f"{dtype_name(p.dtype)} of {tuple(p.shape)}" for p in (first, again)]
                return Difference(DISAGREES, f"a result was {forms[0]}, and {forms[1]} in the backward", first.module)
            if bits_first == bits_again:
                continue
            scale = float(first.elements.abs().max())
            change = (first.elements - again.elements).abs()
            largest, count = float(change.max()), int((change > 0).sum())
            unit = torch.finfo(first.dtype).eps if first.dtype.is_floating_point else 0.0
            if largest > ROUNDING * unit * scale:
                found = (
                    f"the backward computed other results than the forward: {count:,} of {change.numel():,} elements "
                )
                return Difference(DISAGREES, f"{found}differ, by up to {largest:.2g}", first.module)
            undecided = undecided or Difference(UNDECIDED, "results differ by no more than rounding, or are not finite")
    return undecided or Difference(AGREES)
