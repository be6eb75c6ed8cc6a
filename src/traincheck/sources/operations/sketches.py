"""Sketches of tensors, see `Sketch`.

Note [Random projections]
A projection is the sum of all elements with random signs. For two tensors, the expected square of the difference of
their projections is the squared distance of the tensors, so a few projections estimate it. The sign of the element at
position `i` is the product of a sign of its row and of its column, where a row has `WIDTH` elements. So one pass over
the elements serves all projections. A sign is a bit of a hash of the position, so signs are the same in all processes,
on all machines and in all versions of torch.
"""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from typing import NamedTuple

import torch

from traincheck.sources.operations.placements import is_other_reduction, placement_of
from traincheck.sources.tensors.reading import dtype_name, fingerprints, local_tensor
from traincheck.vocab.operations import Sketch, packed

PROJECTIONS = 8
WIDTH = 1024
_SEED = 20_241_118

_signs: dict[tuple[torch.device, torch.dtype], _Signs] = {}


class _Signs(NamedTuple):
    """Signs of rows (a column for each), and of columns (a row for each projection). Both end with a row of ones, which
    computes sums."""

    rows: torch.Tensor
    columns: torch.Tensor
    first: float  # the sign of the first row


def sketches(tensors: Sequence[torch.Tensor], known: MutableMapping[int, Sketch] | None = None) -> list[Sketch]:
    """A sketch of each tensor. Waits for an accelerator. Call inside `hidden_from_modes()`.

    `known` are sketches by fingerprint, which are not computed again. New ones are added.
    """
    known = {} if known is None else known
    made = []
    for tensor, fingerprint in zip(tensors, fingerprints(tensors), strict=True):
        sketch = known.get(fingerprint) if fingerprint is not None else None
        if sketch is None:
            sketch = _sketch(tensor, fingerprint)
            if sketch.fingerprint is not None:
                known[sketch.fingerprint] = sketch
        made.append(sketch)
    return made


def elements(tensor: torch.Tensor) -> bytes:
    """All elements of a tensor, packed as those of a sketch; empty if they cannot be read. Waits for an accelerator.
    Call inside `hidden_from_modes()`."""
    dense = local_tensor(tensor)
    return b"" if dense is None else packed(_numbers(dense.detach()).tolist())


def _sketch(tensor: torch.Tensor, fingerprint: int | None) -> Sketch:
    kind, shape = dtype_name(tensor.dtype), tuple(tensor.shape)
    dense = local_tensor(tensor)
    if dense is None or not dense.numel() or is_other_reduction(tensor):
        return Sketch(kind, shape, fingerprint)
    numbers = _numbers(dense.detach())
    placement = placement_of(tensor, dense)
    if placement is None:
        projections, factor = _project(numbers)
    else:
        projections, factor = _project_at(numbers, placement.positions(dense.device)), 1.0
    elements = numbers[:: max((numbers.numel() - 1) // 2, 1)][:3]  # the tensor may be expanded, or a part of another
    norm = torch.linalg.vector_norm(numbers)
    values = torch.cat([projections, norm.reshape(1), elements]).tolist()
    return Sketch(
        kind,
        shape,
        None if placement is not None else fingerprint,
        values[PROJECTIONS],
        values[PROJECTIONS + 1],
        packed(factor * value for value in values[:PROJECTIONS]),
        packed(values[PROJECTIONS + 2 :]),
        0.0 if placement is None else placement.share,
        placement is not None and placement.partial,
    )


def _numbers(dense: torch.Tensor) -> torch.Tensor:
    """The elements as real numbers, in single precision at least, in the order of their positions."""
    if dense.is_complex():
        dense = torch.view_as_real(dense)
    wide = torch.float64 if dense.dtype == torch.float64 and dense.device.type != "mps" else torch.float32
    return dense.reshape(-1).to(wide)


def _project(numbers: torch.Tensor) -> tuple[torch.Tensor, float]:
    """The projections and the sum, and a factor of the projections. Each element is read once."""
    rows, rest = divmod(numbers.numel(), WIDTH)
    signs = _signs_for(numbers, rows + 1)
    if not rows:
        return signs.columns[:, :rest] @ numbers, signs.first
    folded = signs.rows[:, :rows] @ numbers[: rows * WIDTH].view(rows, WIDTH)
    if rest:
        folded[:, :rest].addr_(signs.rows[:, rows], numbers[rows * WIDTH :])
    projections = signs.columns @ folded[0]
    projections[-1] = folded[1].sum()
    return projections, 1.0


def _project_at(numbers: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """As `_project`, for elements at these positions of a larger tensor."""
    rows, columns = positions // WIDTH, positions % WIDTH
    signs = _signs_for(numbers, int(rows.max()) + 1)
    signed = numbers * signs.rows[0, rows]
    projections = [(signed * of_columns[columns]).sum() for of_columns in signs.columns[:-1]]
    return torch.stack([*projections, numbers.sum()])


def _signs_for(numbers: torch.Tensor, rows: int) -> _Signs:
    """The signs of at least so many rows, and of the columns."""
    key = numbers.device, numbers.dtype
    known = _signs.get(key)
    if known is None or known.rows.shape[1] < rows:
        count = 1 << max(rows - 1, 255).bit_length()
        of_rows = _with_ones(_hashed_signs(_SEED, count).view(1, count))
        of_columns = _with_ones(_hashed_signs(_SEED + 1, PROJECTIONS * WIDTH).view(PROJECTIONS, WIDTH))
        first = float(of_rows[0, 0])
        known = _signs[key] = _Signs(
            of_rows.to(numbers.device, numbers.dtype), of_columns.to(numbers.device, numbers.dtype), first
        )
    return known


def _with_ones(signs: torch.Tensor) -> torch.Tensor:
    return torch.cat([signs, torch.ones(1, signs.shape[1])])


def _hashed_signs(seed: int, count: int) -> torch.Tensor:
    """Signs of the positions 0 to `count`: a bit of an integer hash of each."""
    position = torch.arange(count, dtype=torch.int64) + (seed << 20)
    for multiplier in (0x2545F4914F6CDD1D, 0x369DEA0F31A53F85):
        position = (position ^ ((position >> 31) & 0x1FFFFFFFF)) * multiplier
    return 1.0 - 2.0 * ((position >> 40) & 1).to(torch.float32)
