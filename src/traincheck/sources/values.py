"""Values: what the numbers in a tensor say, in a few facts; read so that the program does not notice."""

from __future__ import annotations

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


_NO = torch.zeros(())
"""Says of a tensor on the CPU that its rows do not sum to one."""


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
        return any(self)

    def __or__(self, other: tuple[bool, ...]) -> Reads:
        return Reads(*(one or another for one, another in zip(self, other, strict=True)))


ALL = Reads(numbers=True, rows=True, contents=True)


def readable(tensor: torch.Tensor) -> bool:
    """Whether the values of `tensor` are read: its memory can be, it is not too large, and the stream can be waited
    for (while a CUDA graph is captured, nothing may be)."""
    try:
        if local(tensor) is None or tensor.numel() > MOST_ELEMENTS:
            return False
    except (RuntimeError, NotImplementedError):
        return False
    return tensor.device.type != "cuda" or not torch.cuda.is_current_stream_capturing()


def value_facts(tensors: Sequence[torch.Tensor], reads: Reads = ALL) -> list[dict[str, FactValue]]:
    """For each readable tensor its numbers: `zero` (all elements are), and of floating point ones also `finite` and
    `norm` (the 2-norm, of finite ones); and `rows_sum_to_one` (along the last dimension, without a negative element).

    One transfer for each device; another for tensors that are all zero or hold what is not finite. Call under `unseen`.
    """
    found: list[dict[str, FactValue]] = [{} for _ in tensors]
    pending: dict[torch.device, list[tuple[int, torch.Tensor, list[torch.Tensor]]]] = {}
    for place, tensor in enumerate(tensors):
        dense = local(tensor)
        if dense is None:
            continue
        measured = _measured(dense, reads)
        if dense.is_cpu:  # there is nothing to be fetched
            found[place] = _told(dense, [float(number) for number in measured], reads)
        elif measured:
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
    numbers = [euclidean_norm(dense)] if reads.numbers else []
    if reads.rows and _has_rows(dense):
        if dense.is_cpu and abs(float(dense[(0,) * (dense.dim() - 1)].sum()) - 1) > tolerance:
            numbers.append(_NO)  # the first row settles it for nearly all that have others
        else:
            off = (dense.sum(-1) - 1).abs().amax()
            numbers.append((off <= tolerance) & (dense.amin() >= 0))
    return numbers


def euclidean_norm(dense: torch.Tensor) -> torch.Tensor:
    """The 2-norm of all elements, as a tensor. Call under `unseen`.

    On the CPU a dot product is several times as fast, and rounds less; but in half precision squares overflow.
    """
    if not dense.is_cpu or dense.dtype not in _IN_FULL or not dense.is_contiguous():
        return torch.linalg.vector_norm(dense)
    flat = dense.view(-1)
    return torch.dot(flat, flat).sqrt()


_IN_FULL = (torch.float32, torch.float64)


def _has_rows(dense: torch.Tensor) -> bool:
    """Whether there are rows of which it says something that they sum to one."""
    return bool(dense.is_floating_point() and dense.dim() > 0 and dense.shape[-1] > 1 and dense.numel() > 0)


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
