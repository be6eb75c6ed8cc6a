"""Measure how far the results of one worker are from those of another.

Frequency is the share of elements that differ. Severity is the mean of |suspect - trusted| / |trusted| over them. Noise
to signal is ||suspect - trusted|| / ||trusted||, over a gradient or over all of them (Ma et al., ACL 2025, section 4).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from traincheck.sources.tensors.reading import as_integers


@dataclass
class Mismatch:
    """Sums over any number of tensors. An element differs if any of its bits does.

    `relative` is the sum of relative differences over the `rated` elements. An element that differs is rated if both
    values are finite and the trusted value is not zero. `broken` counts elements that are not finite on the suspect
    alone.
    """

    elements: int = 0
    different: int = 0
    rated: int = 0
    relative: float = 0.0
    worst: float = 0.0
    broken: int = 0

    def add(self, trusted: torch.Tensor, suspect: torch.Tensor) -> bool:
        """Add a tensor of both workers, on the CPU; return whether they differ."""
        expected, actual = trusted.detach().reshape(-1), suspect.detach().reshape(-1)
        self.elements += expected.numel()
        places = (as_integers(expected) != as_integers(actual)).nonzero().flatten()
        if not len(places):
            return False
        self.different += len(places)
        if expected.is_floating_point():
            right, wrong = expected[places].double(), actual[places].double()
            self.broken += int((right.isfinite() & ~wrong.isfinite()).sum())
            comparable = right.isfinite() & wrong.isfinite() & (right != 0)
            if comparable.any():
                relative = ((wrong - right).abs() / right.abs())[comparable]
                self.rated += len(relative)
                self.relative += float(relative.sum())
                self.worst = max(self.worst, float(relative.max()))
        return True

    @property
    def frequency(self) -> float:
        return self.different / self.elements if self.elements else 0.0

    @property
    def severity(self) -> float:
        return self.relative / self.rated if self.rated else 0.0

    def data(self) -> dict[str, Any]:
        """Return the measures as a JSON object."""
        return {
            "elements": self.elements,
            "different": self.different,
            "rated": self.rated,
            "frequency": self.frequency,
            "severity": self.severity,
            "worst": self.worst,
            "not_finite": self.broken,
        }


class Distance:
    """||suspect - trusted|| and ||trusted|| over several tensors, summed in double precision."""

    def __init__(self) -> None:
        self._difference = self._trusted = 0.0

    def add(self, trusted: torch.Tensor, suspect: torch.Tensor) -> float:
        """Add a tensor; return its own noise to signal."""
        expected, actual = trusted.detach().reshape(-1), suspect.detach().reshape(-1)
        differs = as_integers(expected) != as_integers(actual)  # what is not finite, and the same, is not apart
        expected, actual = expected.double(), actual.double()
        difference, size = float((actual - expected)[differs].pow(2).sum()), float(expected.pow(2).sum())
        self._difference += difference
        self._trusted += size
        return _ratio(difference, size)

    @property
    def absolute(self) -> float:
        return math.sqrt(self._difference)

    @property
    def relative(self) -> float:
        """The noise to signal."""
        return _ratio(self._difference, self._trusted)


def _ratio(difference: float, size: float) -> float:
    if difference == 0:
        return 0.0
    return math.sqrt(difference / size) if size else math.inf


def worst(values: Iterable[float]) -> float:
    """Return the largest value; values that are not finite are larger than all others."""
    return max((math.inf if math.isnan(value) else value for value in values), default=0.0)


def plain(value: Any) -> Any:
    """Return the value with null for numbers that are not finite, which JSON does not have."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, (list, tuple)) else value
