"""Arithmetic in float64 that also bounds how far the rounding of an implementation may lead away from the exact value.

Note [Rounding errors]
An implementation computes in the precision of its tensors. Each of its operations may round a scalar to this precision,
and rounds its result; a fused or reordered formula rounds the same sums in another order. So every operation here adds
two unit roundoffs of its result, of both summands for a sum, and carries the errors of its operands along, as a running
error analysis does (Higham, Accuracy and Stability of Numerical Algorithms, section 3.3). Where the error exceeds
than a divisor, or a number leaves the range of the precision, the bound is infinite: nothing is known of that element.
"""

from __future__ import annotations

import math
from typing import NamedTuple, TypeAlias

import torch

Number: TypeAlias = "torch.Tensor | float"

ROUNDINGS = 2
"""Unit roundoffs for each operation, see Note [Rounding errors]."""


class Precision(NamedTuple):
    """The unit roundoff of a floating-point format, its smallest result without underflow, and its largest number."""

    unit: float
    least: float
    largest: float

    def coarsest(self, other: Precision) -> Precision:
        """The precision of an operation on both formats, in the worst case."""
        if self is other:
            return self
        return Precision(max(self.unit, other.unit), max(self.least, other.least), min(self.largest, other.largest))


def precision_of(dtype: torch.dtype) -> Precision:
    """The precision of a floating-point or complex dtype."""
    limits = torch.finfo(dtype)
    # Devices flush subnormal numbers to zero where they are rare, which they are not in float16.
    least = limits.smallest_normal * (limits.eps if dtype is torch.float16 else 1.0)
    return Precision(limits.eps / 2, least, limits.max)


DOUBLE, SINGLE = precision_of(torch.float64), precision_of(torch.float32)


class Rounded:
    """A number, or a tensor of float64: the exact value, and a bound on the error of an implementation.

    Operands may be plain numbers, which are exact.
    """

    __slots__ = ("error", "precision", "value")

    def __init__(self, value: Number, error: Number = 0.0, precision: Precision = DOUBLE) -> None:
        self.value = value
        self.error = error
        self.precision = precision

    def __add__(self, other: Rounded | float) -> Rounded:
        other = _rounded(other)
        precision = self.precision.coarsest(other.precision)
        summands = abs(self.value) + abs(other.value)
        error = self.error + other.error + summands * (ROUNDINGS * precision.unit)
        return Rounded(self.value + other.value, error, precision)

    def __mul__(self, other: Rounded | float) -> Rounded:
        other = _rounded(other)
        precision = self.precision.coarsest(other.precision)
        value = self.value * other.value
        error = abs(value) * (ROUNDINGS * precision.unit) + precision.least
        for one, two in ((self, other), (other, self)):
            if not _is_zero(two.error):
                error = error + abs(one.value) * two.error
        if not (_is_zero(self.error) or _is_zero(other.error)):
            error = error + self.error * other.error
        return Rounded(value, _infinite_outside(value, error, precision), precision)

    def __truediv__(self, other: Rounded | float) -> Rounded:
        other = _rounded(other)
        precision = self.precision.coarsest(other.precision)
        room = abs(other.value) - other.error  # the smallest divisor
        if not isinstance(room, torch.Tensor) and room <= 0:
            return Rounded(self.value * math.nan, math.inf, precision)
        value = self.value / other.value
        error = abs(value) * (ROUNDINGS * precision.unit) + precision.least
        if not _is_zero(self.error):
            error = error + self.error / room
        if not _is_zero(other.error):
            error = error + abs(value) * other.error / room
        if isinstance(room, torch.Tensor):
            error = torch.where(room > 0, error, math.inf)
        return Rounded(value, _infinite_outside(value, error, precision), precision)

    def __pow__(self, exponent: float) -> Rounded:
        """A positive number to a power."""
        value = self.value**exponent
        error = abs(value) * (ROUNDINGS * self.precision.unit + abs(exponent) * self.error / self.value)
        return Rounded(value, error, self.precision)

    def sqrt(self) -> Rounded:
        """The square root; the error covers negative values, which become zero or NaN in an implementation."""
        value = _sqrt(self.value)
        error = abs(value) * (ROUNDINGS * self.precision.unit)
        if not _is_zero(self.error):
            error = error + _sqrt(self.value + self.error) - _sqrt(_at_least(self.value - self.error, 0.0))
        return Rounded(value, error, self.precision)

    def sign(self) -> Rounded:
        """The sign; unknown where the error may change it."""
        value = _tensor(self.value).sign()
        changes = (_tensor(self.value).abs() <= self.error) & (_tensor(self.error) > 0)
        return Rounded(value, torch.where(changes, math.inf, 0.0), self.precision)

    def where(self, condition: torch.Tensor, other: Rounded | float) -> Rounded:
        """This value where the condition holds, the other elsewhere."""
        other = _rounded(other)
        value = torch.where(condition, self.value, other.value)
        error = torch.where(condition, _tensor(self.error), _tensor(other.error).to(value.device))
        return Rounded(value, error, self.precision.coarsest(other.precision))

    def maximum(self, other: Rounded | float) -> Rounded:
        """The larger of two values."""
        other = _rounded(other)
        value = _at_least(self.value, other.value)
        error = _at_least(self.error, other.error) + abs(value) * other.precision.unit
        return Rounded(value, error, self.precision.coarsest(other.precision))

    def clamp(self, least: float, most: float) -> Rounded:
        """The value within bounds, which are rounded to the precision."""
        value = _tensor(self.value).clamp(least, most)
        return Rounded(value, self.error + abs(value) * self.precision.unit, self.precision)

    def mean(self, dim: int | None = None) -> Rounded:
        """The mean of numbers without a sign, along one dimension that stays, or of all elements."""
        tensor = _tensor(self.value)
        value = tensor.mean() if dim is None else tensor.mean(dim, keepdim=True)
        errors = _tensor(self.error).expand_as(tensor)
        error = errors.mean() if dim is None else errors.mean(dim, keepdim=True)
        count = tensor.numel() if dim is None else tensor.shape[dim]
        unit = ROUNDINGS * self.precision.unit + SUM_ROUNDINGS * math.sqrt(count) * min(
            self.precision.unit, SINGLE.unit
        )
        return Rounded(value, error + value * unit, self.precision)

    __radd__, __rmul__ = __add__, __mul__

    def __neg__(self) -> Rounded:
        return Rounded(-self.value, self.error, self.precision)

    def __abs__(self) -> Rounded:
        return Rounded(abs(self.value), self.error, self.precision)

    def __sub__(self, other: Rounded | float) -> Rounded:
        return self + -other

    def __rsub__(self, other: float) -> Rounded:
        return -self + other

    def __rtruediv__(self, other: float) -> Rounded:
        return Rounded(other) / self


SUM_ROUNDINGS = 8
"""Errors of sums grow with the square root of their length, as those of random walks; torch sums in single precision at
least, in an order that is not known. This is the factor of safety."""


def _rounded(operand: Rounded | float) -> Rounded:
    return operand if isinstance(operand, Rounded) else Rounded(operand)


def _is_zero(error: Number) -> bool:
    return not isinstance(error, torch.Tensor) and error == 0


def _tensor(number: Number) -> torch.Tensor:
    return number if isinstance(number, torch.Tensor) else torch.tensor(number, dtype=torch.float64)


def _sqrt(number: Number) -> Number:
    return number.sqrt() if isinstance(number, torch.Tensor) else math.sqrt(number)


def _at_least(number: Number, least: Number) -> Number:
    if isinstance(number, torch.Tensor):
        return torch.maximum(number, least) if isinstance(least, torch.Tensor) else number.clamp_min(least)
    return _at_least(least, number) if isinstance(least, torch.Tensor) else max(number, least)


def _infinite_outside(value: Number, error: Number, precision: Precision) -> Number:
    """The error, infinite where the value may leave the range of the precision."""
    if isinstance(value, torch.Tensor):
        return torch.where(value.abs() + error <= precision.largest, error, math.inf)
    return error if abs(value) <= precision.largest else math.inf
