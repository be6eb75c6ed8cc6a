"""Sketches of tensors, see `Sketch`.

Note [Random projections]
A projection is the sum of all elements with random signs. For two tensors, the expected square of the difference of
their projections is the squared distance of the tensors, so a few projections estimate it. The sign of the element at
position `i` is the product of a sign of its row and of its column, where a row has `WIDTH` elements. So one pass over
the elements serves all projections. A sign is a bit of a hash of the position, so signs are the same in all processes,
on all machines and in all versions of torch.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from traincheck.sources.operations.placements import placement_of
from traincheck.sources.tensors.reading import dtype_name, fingerprints, local_tensor
from traincheck.vocab.operations import Sketch, packed

PROJECTIONS = 8
WIDTH = 1024
_SEED = 20_241_118

_signs: dict[tuple[torch.device, torch.dtype], tuple[torch.Tensor, torch.Tensor]] = {}


def sketches(tensors: Sequence[torch.Tensor]) -> list[Sketch]:
    """A sketch of each tensor. Waits for an accelerator. Call inside `hidden_from_modes()`."""
    return [_sketch(tensor, fingerprint) for tensor, fingerprint in zip(tensors, fingerprints(tensors), strict=True)]


def _sketch(tensor: torch.Tensor, fingerprint: int | None) -> Sketch:
    kind, shape = dtype_name(tensor.dtype), tuple(tensor.shape)
    dense = local_tensor(tensor)
    if dense is None or not dense.numel():
        return Sketch(kind, shape, fingerprint)
    numbers = _numbers(dense.detach())
    placement = placement_of(tensor, dense)
    if placement is None:
        total, norm, projections = _project(numbers)
    else:
        fingerprint = None
        total, norm, projections = _project_at(numbers, placement.positions(dense.device))
    last = numbers.numel() - 1
    elements = torch.stack([numbers[position] for position in sorted({0, last // 2, last})])
    values = torch.cat([total.reshape(1), norm.reshape(1), projections, elements.to(total.dtype)]).tolist()
    return Sketch(
        kind,
        shape,
        fingerprint,
        values[0],
        values[1],
        packed(values[2 : 2 + PROJECTIONS]),
        packed(values[2 + PROJECTIONS :]),
        0.0 if placement is None else placement.share,
        placement is not None and placement.partial,
    )


def _numbers(dense: torch.Tensor) -> torch.Tensor:
    """The elements as real numbers, in single precision at least, in the order of their positions."""
    if dense.is_complex():
        dense = torch.view_as_real(dense)
    wide = torch.float64 if dense.dtype == torch.float64 and dense.device.type != "mps" else torch.float32
    return dense.reshape(-1).to(wide)


def _project(numbers: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    rows, rest = divmod(numbers.numel(), WIDTH)
    row_signs, column_signs = _signs_for(numbers, rows + 1)
    folded = numbers[rows * WIDTH :] * row_signs[rows]
    if rows:
        whole = row_signs[:rows] @ numbers[: rows * WIDTH].view(rows, WIDTH)
        whole[:rest] += folded
        folded = whole
    projections = column_signs[:, : folded.numel()] @ folded
    return numbers.sum(), torch.linalg.vector_norm(numbers), projections


def _project_at(numbers: torch.Tensor, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """As `_project`, for elements at these positions of a larger tensor."""
    rows, columns = positions // WIDTH, positions % WIDTH
    row_signs, column_signs = _signs_for(numbers, int(rows.max()) + 1)
    signed = numbers * row_signs[rows]
    projections = torch.stack([(signed * signs[columns]).sum() for signs in column_signs])
    return numbers.sum(), torch.linalg.vector_norm(numbers), projections


def _signs_for(numbers: torch.Tensor, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Signs of at least so many rows, and of the columns for each projection."""
    key = numbers.device, numbers.dtype
    known = _signs.get(key)
    if known is None or known[0].numel() < rows:
        count = 1 << max(rows - 1, 255).bit_length()
        row_signs = _hashed_signs(_SEED, count).to(numbers.device, numbers.dtype)
        column_signs = _hashed_signs(_SEED + 1, PROJECTIONS * WIDTH).to(numbers.device, numbers.dtype)
        known = _signs[key] = row_signs, column_signs.view(PROJECTIONS, WIDTH)
    return known


def _hashed_signs(seed: int, count: int) -> torch.Tensor:
    """Signs of the positions 0 to `count`: a bit of an integer hash of each."""
    position = torch.arange(count, dtype=torch.int64) + (seed << 20)
    for multiplier in (0x2545F4914F6CDD1D, 0x369DEA0F31A53F85):
        position = (position ^ ((position >> 31) & 0x1FFFFFFFF)) * multiplier
    return 1.0 - 2.0 * ((position >> 40) & 1).to(torch.float32)
