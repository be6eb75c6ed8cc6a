"""How far two tensors are apart, by their sketches, and how much of that rounding explains.

Note [What rounding explains]
An operation with equal inputs may return other bits in another run: a library, a kernel or a layout adds in another
order. Each result of an accumulation over `k` products carries an error of about `sqrt(k)` units of the precision in
which it adds (single precision at least), and one unit of the precision in which it is stored. An operation with
inputs that differ passes that on, and may amplify it. So a result is explained if its distance is at most

    TIMES * (unit of the result + unit of the sum * sqrt(k)) + AMPLIFIES * uncertainty of the inputs.

The uncertainty of a value is its distance, or that of a value from which it was computed if that is larger: the
distance of masked logits is hidden behind the huge numbers of the mask. A result that is not explained is the origin
of a difference. A large difference explains everything behind it, and that is right: behind it nothing can be told.

In a backward, distances are relative to the incoming gradient if that is larger: the gradient of a bias before a
normalisation is a sum that cancels, and all that remains of it is rounding.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from traincheck.comparison.ranks import PartsOfRanks, forms, sizes
from traincheck.vocab.operations import Sketch

TIMES = 8.0
AMPLIFIES = 30.0
"""A softmax over large logits, a normalisation of small numbers or a difference of near ones multiply relative errors
by so much. What amplifies more is ill-conditioned, and is reported as an origin."""

_UNITS = {"float64": 2.0**-53, "complex128": 2.0**-53, "bfloat16": 2.0**-9, "float16": 2.0**-11}
_EIGHT_BITS = {"float8_e4m3fn": 2.0**-4, "float8_e5m2": 2.0**-3}
_SINGLE = 2.0**-24
SKETCHED = 16 * _SINGLE
"""Sketches are computed in single precision: so much is their own error."""

_EXACT = ("bool", "int", "uint")


def unit(dtype: str) -> float:
    """Half the distance of two neighbouring numbers near 1; 0 for integers."""
    if dtype.startswith(_EXACT):
        return 0.0
    return _UNITS.get(dtype) or _EIGHT_BITS.get(dtype) or _SINGLE


def distance(a: Sketch, b: Sketch, least: float = 0.0, *, summands: bool = True) -> float:
    """The relative distance of two tensors: 0 for equal bits, infinite where they cannot be compared.

    It is relative to the larger norm, or to `least` if that is larger. It is an estimate from random projections,
    within a factor of two. What several ranks hold may be summands of a value only with `summands`, see Note [Values of
    several ranks].
    """
    if a.fingerprint is not None and a.fingerprint == b.fingerprint and _is_whole(a) and _is_whole(b):
        return 0.0
    found = math.inf
    for size in {*sizes(a), *sizes(b)}:
        pairs = ((x, y) for x in forms(a, size, summands=summands) for y in forms(b, size, summands=summands))
        found = min(found, *(_distance(x, y, least) for x, y in pairs), math.inf)
    if isinstance(a, PartsOfRanks) and isinstance(b, PartsOfRanks) and len(a.parts) == len(b.parts):
        found = min(found, max(distance(x, y, least) for x, y in zip(a.parts, b.parts, strict=True)))
    return found


def _distance(a: Sketch, b: Sketch, least: float) -> float:
    if a.size != b.size:
        return math.inf
    if not (math.isfinite(a.norm) and math.isfinite(b.norm)):
        return 0.0 if _same_infinity(a.norm, b.norm) else math.inf
    scale = max(a.norm, b.norm, least)
    if not a.packed_projections or not b.packed_projections:
        if _is_unknown(a) or _is_unknown(b):
            return 0.0
        return _distance_of_sums(a, b, scale)
    if scale == 0.0:
        return 0.0
    differences = [x - y for x, y in zip(a.projections, b.projections, strict=True)]
    apart = math.sqrt(sum(each * each for each in differences) / len(differences)) / scale
    is_exact = a.fingerprint is not None and b.fingerprint is not None
    return apart if is_exact else max(apart - SKETCHED, 0.0)  # sketches that were added up


def _is_whole(sketch: Sketch) -> bool:
    return not isinstance(sketch, PartsOfRanks) or sketch.is_replicated


def _is_unknown(sketch: Sketch) -> bool:
    """Whether nothing of the values is known: memory that could not be read, or that means nothing."""
    return not sketch.packed_projections and not sketch.norm and not sketch.total


def _distance_of_sums(a: Sketch, b: Sketch, scale: float) -> float:
    """The distance by sum and norm alone. The sum is computed in single precision."""
    noise = SKETCHED * (max(abs(a.total), abs(b.total)) + math.sqrt(a.size) * scale)
    apart = abs(a.total - b.total) - noise
    if not (a.partial or b.partial):  # the norm of a sum is an estimate
        apart = max(apart, abs(a.norm - b.norm) - SKETCHED * scale)
    return max(apart, 0.0) / scale


def _same_infinity(a: float, b: float) -> bool:
    return math.isnan(a) == math.isnan(b) and math.isinf(a) == math.isinf(b)


def rounding(results: Sequence[Sketch], inputs: Sequence[Sketch]) -> float:
    """How far results may be apart by rounding if the inputs are equal."""
    stored = max((unit(sketch.dtype) for sketch in results), default=0.0)
    if not stored:
        return 0.0
    added = min(_SINGLE, stored)
    return TIMES * (stored + added * math.sqrt(_length(results, inputs)))


def _length(results: Sequence[Sketch], inputs: Sequence[Sketch]) -> float:
    """About how many numbers are added up for one element of a result."""
    size = max(min(sketch.size for sketch in results), 1)
    sizes = sorted((sketch.size for sketch in inputs), reverse=True)[:2]
    product = math.sqrt(math.prod(sizes) / size) if len(sizes) == 2 else 0.0
    return max(1.0, product, sizes[0] / size if sizes else 1.0)
