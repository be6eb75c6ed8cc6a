"""Values: what the numbers in a tensor say, in a few facts; read so that the program does not notice."""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch

from traincheck.sources.tensors.deferred_values import Pending, lies_here
from traincheck.sources.tensors.reading import local
from traincheck.vocab.demand import CONTENTS, NUMBERS, ROWS, Demand
from traincheck.vocab.facts import FactValue

MOST_ELEMENTS = 1 << 20
"""Tensors of more elements are not read for a call: a few milliseconds on a CPU."""

_SUM_TOLERANCE = 1e-4
"""How far the sum of a row of probabilities may be off one in full precision (softmax over a large vocabulary)."""

_FULL = 4
"""Bytes of an element of full precision; anything smaller is widened before it is added up."""


class Reads(NamedTuple):
    """What is read of the values of tensors, see `Demand`; false where it is nothing."""

    numbers: bool
    rows: bool
    contents: bool

    @staticmethod
    def of(demand: Demand, levels: Iterable[str]) -> Reads:
        """What `demand` asks of the calls known under `levels`."""
        known = tuple(levels)
        return Reads(*(demand.wants_state(known, what) for what in (NUMBERS, ROWS, CONTENTS)))

    def __bool__(self) -> bool:
        return self.numbers or self.rows or self.contents

    def __or__(self, other: tuple[bool, ...]) -> Reads:
        return Reads(*(one or another for one, another in zip(self, other, strict=True)))


def readable_memory(tensor: torch.Tensor) -> torch.Tensor | None:
    """The dense local memory of `tensor` where its values are read: that is there, and it is not too large."""
    try:
        return None if tensor.numel() > MOST_ELEMENTS else local(tensor)
    except (RuntimeError, NotImplementedError):
        return None


def readable(tensor: torch.Tensor) -> bool:
    """Whether the values of `tensor` are read, see `readable_memory`."""
    return readable_memory(tensor) is not None


def values_in(memory: Sequence[torch.Tensor | None], reads: Reads) -> list[dict[str, FactValue] | Pending]:
    """For each tensor, by its dense local memory (see `local`), its numbers: `zero` (all elements are), and of floating
    point ones also `finite` and `norm` (the 2-norm, of finite ones); and `rows_sum_to_one` (along the last dimension,
    without a negative element). Nothing of None.

    Those of accelerators are pending, and have no norm where squares overflow. Call under `unseen`.
    """
    found: list[dict[str, FactValue] | Pending] = []
    for dense in memory:
        if dense is None:
            found.append({})
        elif lies_here(dense):  # there is nothing to be fetched
            found.append(_told(dense, _numbers(dense, reads), reads))
        elif dense.numel() == 0:
            found.append(_told_of_none(dense) if reads.numbers else {})
        else:
            numbers, means = _measured(dense, reads)
            found.append(Pending(numbers, means) if numbers else {})
    return found


def _measured(
    dense: torch.Tensor, reads: Reads
) -> tuple[tuple[torch.Tensor, ...], Callable[..., dict[str, FactValue]]]:
    """Numbers to fetch, each a 0-dim tensor, and what is told by them: of integers whether any is not zero; of others
    their norm and the largest of them, and whether rows sum to one."""
    if not (dense.is_floating_point() or dense.is_complex()):
        return ((dense.any(),) if reads.numbers else ()), lambda some: {"zero": not some}
    tolerance = _tolerance(dense.dtype)
    if dense.element_size() < _FULL and not dense.is_complex():
        dense = dense.to(torch.float32)
    numbers = []
    if reads.numbers:
        numbers += [torch.linalg.vector_norm(dense), torch.linalg.vector_norm(dense, math.inf)]
    if reads.rows and _has_rows(dense):
        off = (dense.sum(-1) - 1).abs().amax()
        numbers.append((off <= tolerance) & (dense.amin() >= 0))
    return tuple(numbers), functools.partial(_told_by, reads.numbers)


def _told_of_none(dense: torch.Tensor) -> dict[str, FactValue]:
    """What is told of a tensor without elements."""
    whole = not (dense.is_floating_point() or dense.is_complex())
    return {"zero": True} if whole else {"finite": True, "zero": True, "norm": 0.0}


def _told_by(norms: bool, *numbers: float) -> dict[str, FactValue]:
    """What the numbers of a tensor of floating point tell; with `norms` the first two are its norms."""
    told: dict[str, FactValue] = {}
    if norms:
        norm, largest = numbers[:2]
        told["finite"] = math.isfinite(largest)
        told["zero"] = largest == 0
        if told["finite"] and math.isfinite(norm):
            told["norm"] = norm
    if len(numbers) > 2 * norms:
        told["rows_sum_to_one"] = bool(numbers[-1])
    return told


def _numbers(dense: torch.Tensor, reads: Reads) -> list[float]:
    """Of what lies on the CPU whether any is not zero; or the norm, and whether rows sum to one."""
    if not (dense.is_floating_point() or dense.is_complex()):
        return [_any(dense)] if reads.numbers else []
    tolerance = _tolerance(dense.dtype)
    if dense.element_size() < _FULL and not dense.is_complex():
        dense = dense.to(torch.float32)
    numbers = [euclidean_norm(dense)] if reads.numbers else []
    if reads.rows and _has_rows(dense):
        if abs(float(dense[(0,) * (dense.dim() - 1)].sum()) - 1) > tolerance:
            numbers.append(False)  # the first row settles it for nearly all that have others
        else:
            off = float((dense.sum(-1) - 1).abs().amax())
            numbers.append(off <= tolerance and bool(dense.amin() >= 0))
    return numbers


def _any(dense: torch.Tensor) -> bool:
    """Whether any of the integers that lie on the CPU is not zero; that some of the first are not settles it mostly."""
    if dense.is_contiguous() and dense.numel():
        size = dense.nbytes
        if ctypes.string_at(dense.data_ptr(), min(size, _FIRST)).strip(b"\0"):
            return True
    return bool(dense.any())


_FIRST = 64
"""Bytes that are looked at before a whole tensor of integers is."""


def euclidean_norm(dense: torch.Tensor) -> float:
    """The 2-norm of all elements of what lies on the CPU. Call under `unseen`.

    A dot product is several times as fast as torch's norm, and rounds less; but in half precision squares overflow.
    """
    if dense.dtype not in _IN_FULL or not dense.is_contiguous():
        return float(torch.linalg.vector_norm(dense))
    flat = dense if dense.dim() == 1 else dense.view(-1)
    return float(torch.dot(flat, flat).sqrt())


_IN_FULL = (torch.float32, torch.float64)


def device_norms(tensors: Sequence[torch.Tensor], norm_type: float = 2) -> list[Pending | None]:
    """The norm of each floating point tensor that lies on an accelerator, computed there for all that are alike; None
    of all others. Call under `unseen`."""
    found: list[Pending | None] = [None] * len(tensors)
    kinds: dict[tuple[torch.device, torch.dtype], list[tuple[int, torch.Tensor]]] = {}
    for place, tensor in enumerate(tensors):
        dense = None if lies_here(tensor) else local(tensor)
        if dense is not None and dense.numel() and dense.is_floating_point() and dense.element_size() > 1:
            kinds.setdefault((dense.device, dense.dtype), []).append((place, dense))
    for (_, dtype), entries in kinds.items():
        wide = {"dtype": torch.float32} if dtype.itemsize < _FULL else {}  # of so few bits a norm would be too coarse
        norms = torch._foreach_norm([dense for _, dense in entries], norm_type, **wide)
        for (place, _), norm in zip(entries, norms, strict=True):
            found[place] = Pending((norm,), float)
    return found


def _has_rows(dense: torch.Tensor) -> bool:
    """Whether there are rows of which it says something that they sum to one."""
    return bool(dense.is_floating_point() and dense.dim() > 0 and dense.shape[-1] > 1 and dense.numel() > 0)


@functools.lru_cache
def _tolerance(dtype: torch.dtype) -> float:
    return max(_SUM_TOLERANCE, float(torch.finfo(dtype).eps))


def _told(dense: torch.Tensor, numbers: list[Any], reads: Reads) -> dict[str, FactValue]:
    if not (dense.is_floating_point() or dense.is_complex()):
        return {"zero": not numbers[0]} if reads.numbers else {}
    told = _told_of_norm(dense, float(numbers[0])) if reads.numbers else {}
    if reads.rows and _has_rows(dense):
        told["rows_sum_to_one"] = bool(numbers[-1])
    return told


def _told_of_norm(dense: torch.Tensor, norm: float) -> dict[str, FactValue]:
    told: dict[str, FactValue] = {}
    if norm - norm != 0:  # infinite or no number: squares may have overflowed where the elements did not
        told["finite"] = bool(torch.isfinite(dense).all())
        norm = float(torch.linalg.vector_norm(dense.double())) if told["finite"] else norm
        told["zero"] = False
    else:
        told["finite"] = True
        told["zero"] = norm == 0 and not bool(dense.ne(0).any())  # squares may have vanished
    if told["finite"]:
        told["norm"] = norm
    return told
