"""Which elements of the result of an origin differ, if both runs kept it whole (`--record operations:MODULE@STEP`).

Note [Patterns of elements]
An element differs if both numbers are farther apart than rounding explains, relative to them or to the root mean square
of all elements. A pattern is what all differing elements have in common: some indices of a dimension (a range, a
block such as a head, or each k-th), a factor, or another order of the rows.
"""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from traincheck.comparison.difference import Difference
from traincheck.comparison.distance import rounding
from traincheck.comparison.ranks import PartsOfRanks
from traincheck.trace.folder import RunFolder
from traincheck.trace.operation_files import read_whole_values
from traincheck.vocab.operations import MAX_WHOLE_ELEMENTS, Sketch, WholeValue

MOST_INDICES = 6
"""Indices of a dimension in a text."""


@dataclass(frozen=True)
class ElementDifferences:
    """The elements of a result that differ: their number, the largest difference with its index and both numbers, and
    patterns in words. `reason` says why elements were not compared."""

    size: int
    differing: int = 0
    largest: float = 0.0
    index: tuple[int, ...] = ()
    pair: tuple[float, float] = (0.0, 0.0)
    patterns: tuple[str, ...] = ()
    reason: str = ""


def element_differences(origin: Difference, a: Path, b: Path) -> ElementDifferences | None:
    """The elements of the result of an origin that differ; None if one of the run folders does not have them.

    If ranks or micro-batches hold parts of it, these are the first parts with a difference. Raises the errors of
    `RunFolder`.
    """
    if origin.values is None:
        return None
    own, other = (_parts(sketch) for sketch in origin.values)
    if len(own) != len(other):
        return None
    result = None
    whole = _whole_values(a, origin.step), _whole_values(b, origin.step)
    for x, y in zip(own, other, strict=True):
        values = (whole[0].get(x.fingerprint), whole[1].get(y.fingerprint))
        if values[0] is None or values[1] is None:
            return None
        result = _compared(values[0], values[1], rounding([x, y], []))
        if result.differing or result.reason:
            break
    return result


def _parts(sketch: Sketch) -> Sequence[Sketch]:
    return sketch.parts if isinstance(sketch, PartsOfRanks) and not sketch.is_replicated else (sketch,)


def _whole_values(folder: Path, step: int) -> dict[int | None, WholeValue]:
    """The values of a step that a run kept whole, by fingerprint."""
    files = RunFolder.open(folder).whole_value_files()
    return {value.fingerprint: value for file in files for value in read_whole_values(file) if value.step == step}


def _compared(a: WholeValue, b: WholeValue, allowed: float) -> ElementDifferences:
    own, other = _numbers(a), _numbers(b)
    size = math.prod(a.shape)
    if math.prod(b.shape) != size:
        return ElementDifferences(size, reason="the shapes differ")
    if not (len(own) == len(other) == size):
        return ElementDifferences(size, reason=f"more than {MAX_WHOLE_ELEMENTS:,} elements, or complex numbers")
    finite = [x for x in own if math.isfinite(x)]
    mean_square = math.sqrt(math.fsum(x * x for x in finite) / max(len(finite), 1))
    largest, largest_at, differing = -1.0, 0, []
    for index, (x, y) in enumerate(zip(own, other, strict=True)):
        if x == y or (math.isnan(x) and math.isnan(y)):
            continue
        difference = abs(x - y)
        if not difference <= allowed * max(abs(x), abs(y), mean_square) or not math.isfinite(difference):
            differing.append(index)
            difference = difference if math.isfinite(difference) else math.inf
            if difference > largest:
                largest, largest_at = difference, index
    if not differing:
        return ElementDifferences(size)
    patterns = (*_relations(a.shape, own, other, allowed), *_dimensions(a.shape, differing))
    return ElementDifferences(
        size, len(differing), largest, _index(largest_at, a.shape), (own[largest_at], other[largest_at]), patterns
    )


def _numbers(value: WholeValue) -> array[float]:
    numbers = array("f")
    numbers.frombytes(value.packed_values)
    return numbers


def _index(flat: int, shape: Sequence[int]) -> tuple[int, ...]:
    """A position as an index for each dimension."""
    indices: list[int] = []
    for length in reversed(shape):
        flat, own = divmod(flat, length)
        indices.append(own)
    return tuple(reversed(indices))


# -- patterns ----------------------------------------------------------------------------------------------------------


def _relations(shape: Sequence[int], a: array[float], b: array[float], allowed: float) -> Iterator[str]:
    """What the second run did to all elements: a factor, or another order of rows."""
    if len(a) < 2 or not all(map(math.isfinite, a)) or not all(map(math.isfinite, b)):
        return
    square = math.fsum(x * x for x in a)
    factor = math.fsum(x * y for x, y in zip(a, b, strict=True)) / square if square else 0.0
    rest = math.fsum((y - factor * x) ** 2 for x, y in zip(a, b, strict=True))
    if factor and rest <= (allowed * factor) ** 2 * square:
        yield f"the second run has {factor:.6g} times the values of the first"
        return
    for dimension in range(len(shape) - 1):
        row = math.prod(shape[dimension + 1 :])
        rows = [Counter(values[begin : begin + row].tobytes() for begin in range(0, len(a), row)) for values in (a, b)]
        if rows[0] == rows[1]:
            yield f"the second run has the same parts in another order, along dimension {dimension}"
            return


def _dimensions(shape: Sequence[int], differing: Sequence[int]) -> Iterator[str]:
    """The dimensions of which only some indices have differing elements."""
    stride = math.prod(shape)
    for dimension, length in enumerate(shape):
        stride //= length
        hit = sorted({index // stride % length for index in differing})
        if len(hit) < length:
            yield f"only {_indices(hit, length)} of dimension {dimension} (of {length})"


def _indices(hit: Sequence[int], length: int) -> str:
    """Indices in words: a range, a block, each k-th, or a list."""
    first, last, count = hit[0], hit[-1], len(hit)
    if count == 1:
        return f"index {first}"
    if last - first == count - 1:
        is_block = length % count == 0 and first % count == 0
        return f"indices {first} to {last}{f', block {first // count + 1} of {length // count},' if is_block else ''}"
    steps = {after - before for before, after in pairwise(hit)}
    if len(steps) == 1 and count > 2:
        return f"each {steps.pop()}th index from {first} to {last}"
    listed = ", ".join(map(str, hit[:MOST_INDICES]))
    return f"indices {listed}{f' and {count - MOST_INDICES} more' if count > MOST_INDICES else ''}"
