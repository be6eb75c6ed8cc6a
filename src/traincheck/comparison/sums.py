"""The size, sum and norm of a tensor: what remains of it when its elements are in another order."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from traincheck.vocab.operations import Sketch

SAME_SUMS = 1e-3
"""Sums are computed in single precision, in another order, and perhaps of numbers that were cast."""


class Sums(NamedTuple):
    """Of a tensor, or of several together."""

    size: int
    total: float
    norm: float

    @property
    def key(self) -> tuple[int, str]:
        """Mostly equal for tensors that are near, of whatever shape."""
        return self.size, f"{self.norm:.3g}"

    @classmethod
    def of_parts(cls, parts: Sequence[Sums]) -> Sums:
        """Of the concatenation of tensors."""
        norm = math.sqrt(sum(part.norm**2 for part in parts))
        return cls(sum(part.size for part in parts), sum(part.total for part in parts), norm)

    def is_near(self, other: Sums, tolerance: float = SAME_SUMS) -> bool:
        """Whether both are equal within a tolerance relative to the norm."""
        scale = max(self.norm, other.norm)
        return (
            self.size == other.size
            and abs(self.norm - other.norm) <= tolerance * scale
            and abs(self.total - other.total) <= tolerance * math.sqrt(self.size) * scale
        )


def sums_of(sketch: Sketch) -> Sums:
    """The sums of a tensor."""
    return Sums(sketch.size, sketch.total, sketch.norm)
