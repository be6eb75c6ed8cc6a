"""Reads a few facts about the values of a tensor, such as its norm, without effects on the program."""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch

from traincheck.sources.tensors.deferred_values import DeferredValue, is_on_host
from traincheck.sources.tensors.reading import local_tensor
from traincheck.vocab.demand import CONTENTS, NUMBERS, ROWS, Demand
from traincheck.vocab.facts import FactValue

MAX_ELEMENTS = 1 << 20
"""Larger tensors are not read for a call: reading takes a few milliseconds on a CPU."""

_SUM_TOLERANCE = 1e-4
"""Tolerance for the sum of a row of probabilities in full precision (softmax over a large vocabulary)."""

_FULL_PRECISION_BYTES = 4
"""Bytes of a full-precision element. Smaller elements are widened before they are summed."""


class ValueRequest(NamedTuple):
    """Which facts of tensor values to read, see `Demand`. It is false if there are none."""

    numbers: bool
    rows: bool
    contents: bool

    @staticmethod
    def of(demand: Demand, levels: Iterable[str]) -> ValueRequest:
        """What `demand` requests for the calls known under `levels`."""
        level_names = tuple(levels)
        return ValueRequest(*(demand.reads_values(level_names, kind) for kind in (NUMBERS, ROWS, CONTENTS)))

    def __bool__(self) -> bool:
        return self.numbers or self.rows or self.contents

    def __or__(self, other: tuple[bool, ...]) -> ValueRequest:
        return ValueRequest(*(mine or theirs for mine, theirs in zip(self, other, strict=True)))


def readable_memory(tensor: torch.Tensor) -> torch.Tensor | None:
    """The dense local memory of `tensor`; None if it does not exist or is too large to read."""
    try:
        return None if tensor.numel() > MAX_ELEMENTS else local_tensor(tensor)
    except (RuntimeError, NotImplementedError):
        return None


def readable(tensor: torch.Tensor) -> bool:
    """Whether the values of `tensor` can be read, see `readable_memory`."""
    return readable_memory(tensor) is not None


def value_facts(
    memory: Sequence[torch.Tensor | None], request: ValueRequest
) -> list[dict[str, FactValue] | DeferredValue]:
    """Return the facts of each tensor, given by its dense local memory (see `local_tensor`); none for an entry of None.

    They are `zero` (all elements are), and for floating point also `finite` and `norm` (2-norm, of finite values). With
    `rows`, `rows_sum_to_one` covers the last dimension of tensors without negative elements. Facts of accelerator
    tensors are deferred, and have no norm if squares overflow. Call inside `hidden_from_modes()`.
    """
    results: list[dict[str, FactValue] | DeferredValue] = []
    for dense in memory:
        if dense is None:
            results.append({})
        elif is_on_host(dense):
            results.append(_facts_of_numbers(dense, _host_numbers(dense, request), request))
        elif dense.numel() == 0:
            results.append(_empty_facts(dense) if request.numbers else {})
        else:
            numbers, interpret = _device_numbers(dense, request)
            results.append(DeferredValue(numbers, interpret) if numbers else {})
    return results


def _device_numbers(
    dense: torch.Tensor, request: ValueRequest
) -> tuple[tuple[torch.Tensor, ...], Callable[..., dict[str, FactValue]]]:
    """Numbers to fetch, each a 0-dim tensor, and the function that turns them into facts. Integers yield whether any is
    nonzero; floating point yields the 2-norm, the largest element, and whether rows sum to one."""
    if not (dense.is_floating_point() or dense.is_complex()):
        return ((dense.any(),) if request.numbers else ()), lambda some: {"zero": not some}
    tolerance = _tolerance(dense.dtype)
    if dense.element_size() < _FULL_PRECISION_BYTES and not dense.is_complex():
        dense = dense.to(torch.float32)
    numbers = []
    if request.numbers:
        numbers += [torch.linalg.vector_norm(dense), torch.linalg.vector_norm(dense, math.inf)]
    if request.rows and _has_rows(dense):
        off = (dense.sum(-1) - 1).abs().amax()
        numbers.append((off <= tolerance) & (dense.amin() >= 0))
    return tuple(numbers), functools.partial(_device_facts, request.numbers)


def _empty_facts(dense: torch.Tensor) -> dict[str, FactValue]:
    """The facts of a tensor without elements."""
    is_integer = not (dense.is_floating_point() or dense.is_complex())
    return {"zero": True} if is_integer else {"finite": True, "zero": True, "norm": 0.0}


def _device_facts(norms: bool, *numbers: float) -> dict[str, FactValue]:
    """The facts of a floating point tensor from its fetched numbers; with `norms` the first two are norms."""
    values: dict[str, FactValue] = {}
    if norms:
        norm, largest = numbers[:2]
        values["finite"] = math.isfinite(largest)
        values["zero"] = largest == 0
        if values["finite"] and math.isfinite(norm):
            values["norm"] = norm
    if len(numbers) > 2 * norms:
        values["rows_sum_to_one"] = bool(numbers[-1])
    return values


def _host_numbers(dense: torch.Tensor, request: ValueRequest) -> list[float]:
    """For CPU memory: whether any integer is nonzero, or the norm and whether rows sum to one."""
    if not (dense.is_floating_point() or dense.is_complex()):
        return [_any_nonzero(dense)] if request.numbers else []
    tolerance = _tolerance(dense.dtype)
    if dense.element_size() < _FULL_PRECISION_BYTES and not dense.is_complex():
        dense = dense.to(torch.float32)
    numbers = [euclidean_norm(dense)] if request.numbers else []
    if request.rows and _has_rows(dense):
        if abs(float(dense[(0,) * (dense.dim() - 1)].sum()) - 1) > tolerance:
            numbers.append(False)  # for most tensors the first row settles it
        else:
            off = float((dense.sum(-1) - 1).abs().amax())
            numbers.append(off <= tolerance and bool(dense.amin() >= 0))
    return numbers


def _any_nonzero(dense: torch.Tensor) -> bool:
    """Whether any integer in CPU memory is nonzero. The first bytes mostly settle it."""
    if dense.is_contiguous() and dense.numel():
        size = dense.nbytes
        if ctypes.string_at(dense.data_ptr(), min(size, _PEEKED_BYTES)).strip(b"\0"):
            return True
    return bool(dense.any())


_PEEKED_BYTES = 64
"""Bytes inspected before a whole tensor of integers is."""


def euclidean_norm(dense: torch.Tensor) -> float:
    """The 2-norm of all elements of a CPU tensor. Call inside `hidden_from_modes()`.

    A dot product is several times as fast as torch's norm and rounds less, but in half precision its squares overflow.
    """
    if dense.dtype not in _DOT_DTYPES or not dense.is_contiguous():
        return float(torch.linalg.vector_norm(dense))
    flat = dense if dense.dim() == 1 else dense.view(-1)
    return float(torch.dot(flat, flat).sqrt())


_DOT_DTYPES = (torch.float32, torch.float64)


def device_norms(tensors: Sequence[torch.Tensor], norm_type: float = 2) -> list[DeferredValue | None]:
    """The deferred norm of each floating point tensor on an accelerator, batched by device and dtype; None for all
    others. Call inside `hidden_from_modes()`."""
    norms_by_index: list[DeferredValue | None] = [None] * len(tensors)
    by_dtype: dict[tuple[torch.device, torch.dtype], list[tuple[int, torch.Tensor]]] = {}
    for index, tensor in enumerate(tensors):
        dense = None if is_on_host(tensor) else local_tensor(tensor)
        if dense is not None and dense.numel() and dense.is_floating_point() and dense.element_size() > 1:
            by_dtype.setdefault((dense.device, dense.dtype), []).append((index, dense))
    for (_, dtype), entries in by_dtype.items():
        # A norm in low precision would be too coarse.
        wide = {"dtype": torch.float32} if dtype.itemsize < _FULL_PRECISION_BYTES else {}
        norms = torch._foreach_norm([dense for _, dense in entries], norm_type, **wide)
        for (index, _), norm in zip(entries, norms, strict=True):
            norms_by_index[index] = DeferredValue((norm,), float)
    return norms_by_index


def total_norm(parts: Sequence[float | None], norm_type: float) -> float | None:
    """Return the norm of a vector from the norms of its parts; None where a part is unknown."""
    norms = [norm for norm in parts if norm is not None]
    if len(norms) < len(parts):
        return None
    if len(norms) < 2:
        return norms[0] if norms else 0.0
    return float(torch.linalg.vector_norm(torch.tensor(norms, dtype=torch.float64), norm_type))


def gradient_norms(gradients: list[torch.Tensor], norm_type: float) -> list[Any]:
    """Return the norm of each gradient (of the local part of a shard); None where a gradient cannot be read.

    Norms on accelerators are pending. Call under `hidden_from_modes`.
    """
    norms: list[Any] = list(device_norms(gradients, norm_type))
    for index, gradient in enumerate(gradients):
        dense = local_tensor(gradient) if norms[index] is None else None
        if dense is not None and not dense.numel():
            norms[index] = 0.0
        elif dense is not None and norm_type == 2:
            norms[index] = euclidean_norm(dense)
        elif dense is not None:
            norms[index] = float(torch.linalg.vector_norm(dense, norm_type))
    return norms


def _has_rows(dense: torch.Tensor) -> bool:
    """Whether the tensor has rows with a meaningful sum."""
    return bool(dense.is_floating_point() and dense.dim() > 0 and dense.shape[-1] > 1 and dense.numel() > 0)


@functools.lru_cache
def _tolerance(dtype: torch.dtype) -> float:
    return max(_SUM_TOLERANCE, float(torch.finfo(dtype).eps))


def _facts_of_numbers(dense: torch.Tensor, numbers: list[Any], request: ValueRequest) -> dict[str, FactValue]:
    if not (dense.is_floating_point() or dense.is_complex()):
        return {"zero": not numbers[0]} if request.numbers else {}
    values = _norm_facts(dense, float(numbers[0])) if request.numbers else {}
    if request.rows and _has_rows(dense):
        values["rows_sum_to_one"] = bool(numbers[-1])
    return values


def _norm_facts(dense: torch.Tensor, norm: float) -> dict[str, FactValue]:
    values: dict[str, FactValue] = {}
    if norm - norm != 0:  # infinite or NaN: the squares may have overflowed, but not the elements
        values["finite"] = bool(torch.isfinite(dense).all())
        norm = float(torch.linalg.vector_norm(dense.double())) if values["finite"] else norm
        values["zero"] = False
    else:
        values["finite"] = True
        values["zero"] = norm == 0 and not bool(dense.ne(0).any())  # the squares may have underflowed
    if values["finite"]:
        values["norm"] = norm
    return values
