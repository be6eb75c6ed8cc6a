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

from traincheck.vocab.operations import Sketch

TIMES = 8.0
AMPLIFIES = 30.0
"""A softmax over large logits, a normalisation of small numbers or a difference of near ones multiply relative errors
by so much. What amplifies more is ill-conditioned, and is reported as an origin."""

_UNITS = {"float64": 2.0**-53, "complex128": 2.0**-53, "bfloat16": 2.0**-9, "float16": 2.0**-11}
_EIGHT_BITS = {"float8_e4m3fn": 2.0**-4, "float8_e5m2": 2.0**-3}
_SINGLE = 2.0**-24
_EXACT = ("bool", "int", "uint")


def unit(dtype: str) -> float:
    """Half the distance of two neighbouring numbers near 1; 0 for integers."""
    if dtype.startswith(_EXACT):
        return 0.0
    return _UNITS.get(dtype) or _EIGHT_BITS.get(dtype) or _SINGLE


def distance(a: Sketch, b: Sketch, least: float = 0.0) -> float:
    """The relative distance of two tensors: 0 for equal bits, infinite where they cannot be compared.

    It is relative to the larger norm, or to `least` if that is larger. It is an estimate from random projections,
    within a factor of two.
    """
    if a.fingerprint is not None and a.fingerprint == b.fingerprint:
        return 0.0
    if a.size != b.size:
        return math.inf
    if not a.packed_projections or not b.packed_projections:
        return 0.0 if a.fingerprint is None or b.fingerprint is None or not a.size else math.inf
    if not (math.isfinite(a.norm) and math.isfinite(b.norm)):
        return 0.0 if _same_infinity(a.norm, b.norm) else math.inf
    scale = max(a.norm, b.norm, least)
    if scale == 0.0:
        return 0.0
    differences = [x - y for x, y in zip(a.projections, b.projections, strict=True)]
    return math.sqrt(sum(each * each for each in differences) / len(differences)) / scale


def _same_infinity(a: float, b: float) -> bool:
    return math.isnan(a) == math.isnan(b) and math.isinf(a) == math.isinf(b)


def rounding(results: Sequence[Sketch], inputs: Sequence[Sketch]) -> float:
    """How far results may be apart by rounding if the inputs are equal."""
    stored = max((unit(sketch.dtype) for sketch in results), default=0.0)
    if not stored:
        return 0.0
    added = min(_SINGLE, max((unit(sketch.dtype) for sketch in results if unit(sketch.dtype)), default=_SINGLE))
    return TIMES * (stored + added * math.sqrt(_length(results, inputs)))


def _length(results: Sequence[Sketch], inputs: Sequence[Sketch]) -> float:
    """About how many numbers are added up for one element of a result."""
    size = max(min(sketch.size for sketch in results), 1)
    sizes = sorted((sketch.size for sketch in inputs), reverse=True)[:2]
    product = math.sqrt(math.prod(sizes) / size) if len(sizes) == 2 else 0.0
    return max(1.0, product, sizes[0] / size if sizes else 1.0)
