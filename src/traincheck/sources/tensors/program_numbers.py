"""Separates numbers in the code of a program from numbers that follow from the sizes of tensors.

A description of what a program computes shows the numbers of its code (the weight of a loss), and leaves out those that
another batch size or width would change.
"""

from __future__ import annotations

from collections.abc import Iterable

MAX_INTEGER, MAX_DIVISOR = 8, 1
"""Larger integers are sizes. A whole divisor may count anything in a batch, or the micro-batches of an update."""

_POWERS = (1, 0.5, 0.25, -0.25, -0.5, -1)
"""Powers of sizes that scale values."""


def may_be_size(value: float, sizes: frozenset[float], *, divides: bool) -> bool:
    """Whether a number may follow from `sizes` (see `sizes_and_powers`)."""
    if value.is_integer() and abs(value) > (MAX_DIVISOR if divides else MAX_INTEGER):
        return True
    return value not in (0, 1, -1, 2, 0.5) and float(f"{value:.6g}") in sizes


def sizes_and_powers(sizes: Iterable[int]) -> frozenset[float]:
    """The sizes, and the numbers that follow from them by `_POWERS`."""
    derived = {size**power for size in set(sizes) if size > 0 for power in _POWERS}
    return frozenset(float(f"{number:.6g}") for number in derived)
