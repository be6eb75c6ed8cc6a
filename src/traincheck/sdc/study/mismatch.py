"""Mismatch: how far what one worker computed is from what the other did, as published measures.

Frequency: the share of elements that differ. Severity: the mean of |suspect - trusted| / |trusted| over those that
differ. Noise to signal: ||suspect - trusted|| / ||trusted||, over a gradient or over all of them (Ma et al., ACL 2025,
section 4).
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
    """Sums over any number of tensors. An element differs when a bit of it does.

    `relative` is the sum of relative differences over the `rated` elements: those that differ, and of which that can be
    said. It cannot where the trusted value is zero, and where either is not finite; `broken` counts elements that are
    not finite on the suspect alone.
    """

    elements: int = 0
    different: int = 0
    rated: int = 0
    relative: float = 0.0
    worst: float = 0.0
    broken: int = 0

    def add(self, trusted: torch.Tensor, suspect: torch.Tensor) -> bool:
        """Take in a tensor as either has it, both on the CPU; whether they differ."""
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
        """As JSON holds it."""
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
        """Take in a tensor; the noise to signal of it alone."""
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
    """The largest; what is not finite is larger than all that is."""
    return max((math.inf if math.isnan(value) else value for value in values), default=0.0)


def plain(value: Any) -> Any:
    """The same for JSON, which has no numbers that are not finite: null in their place."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, (list, tuple)) else value
