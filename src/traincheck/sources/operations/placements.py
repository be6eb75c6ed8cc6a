"""Where the elements of a rank's part of a tensor lie in the whole tensor, for tensors that know it (DTensor)."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch


class Placement(NamedTuple):
    """A part of a tensor of shape `whole`: its own shape, and its first index in each dimension.

    The parts of all ranks, each counted with `share`, add up to the whole tensor. A `partial` part is a summand of it.
    """

    whole: tuple[int, ...]
    shape: tuple[int, ...]
    offset: tuple[int, ...]
    share: float
    partial: bool

    def positions(self, device: torch.device) -> torch.Tensor:
        """The positions of the elements of the part in the whole tensor."""
        positions = torch.zeros(1, dtype=torch.int64, device=device)
        for size, length, begin in zip(self.whole, self.shape, self.offset, strict=True):
            along = torch.arange(begin, begin + length, dtype=torch.int64, device=device)
            positions = (positions[:, None] * size + along[None, :]).reshape(-1)
        return positions


def is_other_reduction(tensor: torch.Tensor) -> bool:
    """Whether the parts of all ranks are combined by something else than a sum or mean, such as a norm or maximum."""
    partial = [placed for placed in getattr(tensor, "placements", None) or () if placed.is_partial()]
    # A subclass (`_NormPartial`) changes the parts before they are added up.
    return any(type(each).__name__ != "Partial" or each.reduce_op not in ("sum", "avg") for each in partial)


def placement_of(tensor: torch.Tensor, local: torch.Tensor) -> Placement | None:
    """The placement of a tensor that is not whole on this rank; None for others, and where it is unknown."""
    mesh, placements = getattr(tensor, "device_mesh", None), getattr(tensor, "placements", None)
    if mesh is None or placements is None or all(placed.is_replicate() for placed in placements):
        return None
    try:
        from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
    except ImportError:  # torch 2.4
        from torch.distributed._tensor._utils import compute_local_shape_and_global_offset
    shape, offset = compute_local_shape_and_global_offset(tensor.shape, mesh, placements)
    if tuple(shape) != tuple(local.shape) or math.prod(shape) != local.numel():
        return None
    share = math.prod(_share(placed, mesh.size(dim)) for dim, placed in enumerate(placements))
    partial = any(placed.is_partial() for placed in placements)
    return Placement(tuple(tensor.shape), tuple(shape), tuple(offset), share, partial)


def _share(placed: Any, size: int) -> float:
    """With what factor each of `size` parts counts."""
    if placed.is_replicate() or (placed.is_partial() and getattr(placed, "reduce_op", "sum") == "avg"):
        return 1.0 / size
    return 1.0
