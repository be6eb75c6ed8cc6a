"""Values: what the numbers in a tensor say, in a few facts; read so that the program does not notice."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch

from traincheck.sources.tensors import local
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


ALL = Reads(numbers=True, rows=True, contents=True)


def readable_memory(tensor: torch.Tensor) -> torch.Tensor | None:
    """The dense local memory of `tensor` where its values are read: that is there, it is not too large, and the stream
    can be waited for (while a CUDA graph is captured, nothing may be)."""
    try:
        dense = local(tensor)
        if dense is None or tensor.numel() > MOST_ELEMENTS:
            return None
    except (RuntimeError, NotImplementedError):
        return None
    return None if tensor.is_cuda and torch.cuda.is_current_stream_capturing() else dense


def readable(tensor: torch.Tensor) -> bool:
    """Whether the values of `tensor` are read, see `readable_memory`."""
    return readable_memory(tensor) is not None


def value_facts(tensors: Sequence[torch.Tensor], reads: Reads = ALL) -> list[dict[str, FactValue]]:
    """For each readable tensor its numbers: `zero` (all elements are), and of floating point ones also `finite` and
    `norm` (the 2-norm, of finite ones); and `rows_sum_to_one` (along the last dimension, without a negative element).

    One transfer for each device; another for tensors that are all zero or hold what is not finite. Call under `unseen`.
    """
    return values_in([local(tensor) for tensor in tensors], reads)


def values_in(memory: Sequence[torch.Tensor | None], reads: Reads) -> list[dict[str, FactValue]]:
    """`value_facts` of dense local memory, see `local`; nothing of None. Call under `unseen`."""
    found: list[dict[str, FactValue]] = []
    pending: dict[torch.device, list[tuple[int, torch.Tensor, list[torch.Tensor]]]] = {}
    for place, dense in enumerate(memory):
        found.append({})
        if dense is None:
            continue
        if dense.is_cpu:  # there is nothing to be fetched
            found[place] = _told(dense, _numbers(dense, reads), reads)
        elif measured := _measured(dense, reads):
            pending.setdefault(dense.device, []).append((place, dense, measured))
    for entries in pending.values():
        wide = torch.float32 if entries[0][1].device.type == "mps" else torch.float64
        numbers = iter(torch.stack([number.to(wide) for *_, measured in entries for number in measured]).tolist())
        for place, dense, measured in entries:
            found[place] = _told(dense, [next(numbers) for _ in measured], reads)
    return found


def _measured(dense: torch.Tensor, reads: Reads) -> list[torch.Tensor]:
    """Numbers to fetch, each a 0-dim tensor: any element not zero; or the norm, and whether rows sum to one."""
    if not (dense.is_floating_point() or dense.is_complex()):
        return [dense.any()] if reads.numbers else []
    tolerance = _tolerance(dense.dtype)
    if dense.element_size() < _FULL and not dense.is_complex():
        dense = dense.to(torch.float32)
    numbers = [torch.linalg.vector_norm(dense)] if reads.numbers else []
    if reads.rows and _has_rows(dense):
        off = (dense.sum(-1) - 1).abs().amax()
        numbers.append((off <= tolerance) & (dense.amin() >= 0))
    return numbers


def _numbers(dense: torch.Tensor, reads: Reads) -> list[float]:
    """The same of what lies on the CPU, where a number that is asked for is there."""
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
        size = dense.numel() * dense.element_size()
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
