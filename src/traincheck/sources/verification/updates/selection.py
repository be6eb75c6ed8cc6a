"""Selects the parameters that one comparison covers: those that can be compared, in turns.

Algorithms that treat each element by itself are compared on a stretch of a large parameter.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch.optim import Optimizer

from traincheck.sources.tensors.reading import local_tensor, same_part
from traincheck.sources.verification.updates.comparison import ParameterBefore

MIN_BYTES, SHARE, MAX_BYTES = 1 << 20, 32, 256 << 20
"""One comparison copies about a 32nd of the parameters, gradients and state, within these bounds in bytes. The next
comparisons copy the rest. (A parameter that has to be copied as a whole may exceed the share, not the maximum.)"""


class Position(NamedTuple):
    """Where a comparison begins: the index of a parameter, and that of an element in it."""

    parameter: int = 0
    element: int = 0


START = Position()


class ParametersBefore(NamedTuple):
    """The parameters of one comparison, where the next one begins, and why others cannot be compared."""

    parameters: list[ParameterBefore]
    next: Position
    reasons: list[str]


def read_before(
    optimizer: Optimizer,
    name_of: Callable[[torch.Tensor], str],
    begin: Position = START,
    *,
    computes_gradient: bool = False,
    whole_tensors: bool = False,
) -> ParametersBefore:
    """Copy a share of the parameters that are about to be updated, from `begin` on."""
    listed = [(group, tensor) for group, entry in enumerate(optimizer.param_groups) for tensor in entry["params"]]
    twice = _sharing_memory([tensor for _, tensor in listed])
    reasons: dict[str, None] = {}
    sizes = {}
    for index, (group, tensor) in enumerate(listed):
        if tensor.grad is None and not computes_gradient:
            continue
        reason = _why_not(optimizer.param_groups[group], tensor, index in twice)
        size = _bytes_of(optimizer, tensor)
        if whole_tensors and size > MAX_BYTES:
            reason = "it is too large to be copied"
        if reason:
            reasons[reason] = None
        elif _count(tensor):
            sizes[index] = size
    chosen, position = _take_turns(sizes, [_count(tensor) for _, tensor in listed], begin, whole_tensors)
    parameters = []
    for index, elements in chosen:
        group, tensor = listed[index]
        name = name_of(tensor)
        parameters.append(
            ParameterBefore(optimizer, group, tensor, name, elements, computes_gradient=computes_gradient)
        )
    return ParametersBefore(parameters, position, [*reasons])


def _take_turns(
    sizes: Mapping[int, int], counts: list[int], begin: Position, whole_tensors: bool
) -> tuple[list[tuple[int, slice | None]], Position]:
    """Return the parameters of a comparison with the elements of each, and where the next comparison begins."""
    left = min(max(sum(sizes.values()) // SHARE, MIN_BYTES), MAX_BYTES)
    chosen: list[tuple[int, slice | None]] = []
    for index in sorted(sizes, key=lambda index: (index < begin.parameter, index)):
        size, count = sizes[index], counts[index]
        first = begin.element % count if index == begin.parameter and not chosen else 0
        whole = first == 0 and size <= left
        if whole or whole_tensors:
            if chosen and not whole:
                return chosen, Position(index)
            chosen.append((index, None))
            left -= size
            continue
        last = min(first + max(1, left * count // size), count)
        chosen.append((index, slice(first, last)))
        left -= (last - first) * size // count
        if last < count:
            return chosen, Position(index, last)
    return chosen, START


def _bytes_of(optimizer: Optimizer, tensor: torch.Tensor) -> int:
    state = optimizer.state.get(tensor, {}).values()
    tensors = [tensor, tensor.grad, *(value for value in state if isinstance(value, torch.Tensor))]
    return sum(local.nbytes for part in tensors if part is not None and (local := local_tensor(part)) is not None)


def _count(tensor: torch.Tensor) -> int:
    local = local_tensor(tensor)
    return 0 if local is None else local.numel()


def _why_not(group: Mapping[str, Any], tensor: torch.Tensor, twice: bool) -> str:
    """Why a parameter cannot be compared, empty if it can."""
    local, gradient = local_tensor(tensor), tensor.grad
    if local is None or (gradient is not None and local_tensor(gradient) is None):
        return "it has no plain memory on this rank, or its gradient is sparse"
    if not (local.is_floating_point() or local.is_complex()) or local.dtype not in COMPARED:
        return f"it is of {local.dtype}"
    if local.dtype is torch.float16 and not group.get("fused"):  # fused kernels compute in single precision
        return "the order of operations decides which numbers leave the range of float16"
    if twice:
        return "its memory is updated more than once"
    if local.is_cpu and local.is_shared():
        return "other processes share its memory"
    if gradient is not None and not same_part(tensor, gradient):
        return "its gradient is sharded in another way"
    return ""


def _sharing_memory(tensors: list[torch.Tensor]) -> set[int]:
    """The indices of tensors that share memory with each other, or with themselves."""
    spans = []
    shared = set()
    for index, tensor in enumerate(tensors):
        local = local_tensor(tensor)
        if local is None or not local.numel():
            continue
        reach = sum((length - 1) * stride for length, stride in zip(local.shape, local.stride(), strict=True)) + 1
        if reach < local.numel():
            shared.add(index)
        begin = local.data_ptr()
        spans.append((str(local.device), begin, begin + reach * local.element_size(), index))
    spans.sort()
    for (device, _, end, index), (next_device, begin, _, following) in itertools.pairwise(spans):
        if device == next_device and begin < end:
            shared |= {index, following}
    return shared


COMPARED = (
    torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.complex64, torch.complex128,
)  # fmt: skip
