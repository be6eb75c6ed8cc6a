"""Compares the marks of two runs: values that the programs name, wherever and with whatever they compute them.

Note [What rounding explains between marks]
Any number of operations may lie between two marks, and two programs may order them differently. So the bound of a mark
does not follow from its inputs, but from the coarser precision of the two programs (`Mark.precision`):

    TIMES * (unit of the precision + unit of the sum * sqrt(WIDTH)) + GROWS * distance of the marks before it.

`TIMES` units are the rounding errors of about 400 operations in a row, as each adds 0.4 units and errors add up as a
random walk. The sum is that of a long row of a matrix. Distances are relative to the norm of the whole value, and in
single precision at least, as sketches are. No rounding explains integers that differ.
"""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

from traincheck.comparison.distance import SKETCHED, TIMES, distance, unit
from traincheck.comparison.ranks import join
from traincheck.trace.folder import RunFolder
from traincheck.trace.operation_files import read_marks
from traincheck.vocab.marks import MAX_MARKS, Mark
from traincheck.vocab.operations import Sketch

_SINGLE = unit("float32")
WIDTH = 4096
"""The length of a long row of a matrix, which a sum runs over."""

GROWS = 4.0
"""From one mark to the next, the relative distance grows by so much. Norms keep it; logits and losses of peaked
distributions double it."""


@dataclass(frozen=True)
class MarkedValue:
    """A marked value of a run. `parts` are those of its ranks, or that of the first rank if all hold the same."""

    parts: tuple[Mark, ...]
    sketch: Sketch
    ranks: int = 1

    @property
    def first(self) -> Mark:
        """The part of the first rank."""
        return self.parts[0]


@dataclass(frozen=True)
class RunMarks:
    """The marks of a run in their order, by name and occurrence. `is_full` is whether some were not recorded."""

    values: dict[tuple[str, int], MarkedValue]
    ranks: int = 1
    is_full: bool = False


@dataclass(frozen=True)
class Elements:
    """The absolute differences of all elements of a value: the largest, its index in the flat value with the two
    elements there, the mean, and how many elements there are. `rank` is the position of the rank that has it."""

    largest: float
    index: int
    pair: tuple[float, float]
    mean: float
    size: int
    rank: int = 0


@dataclass(frozen=True)
class MarkDifference:
    """The first mark with other values. `after` is the mark before it, None for the first.

    `results` and `allowed` are relative distances. `factor` is what the second run multiplied the value with, where
    that explains the difference. `reordered` is whether the elements may have another order.
    """

    name: str
    occurrence: int
    after: tuple[str, int] | None
    results: float
    allowed: float
    values: tuple[MarkedValue, MarkedValue]
    elements: Elements | None = None
    factor: float | None = None
    reordered: bool = False


@dataclass(frozen=True)
class MarkComparison:
    """How many marks have the same values, differ by rounding, and differ behind `first`.

    `counts` are the names with other numbers of occurrences, each with both numbers. `full` is whether each run has
    more marks than were recorded.
    """

    same: int = 0
    rounding: int = 0
    behind: int = 0
    first: MarkDifference | None = None
    counts: tuple[tuple[str, int, int], ...] = ()
    full: tuple[bool, bool] = (False, False)

    @property
    def compared(self) -> int:
        """The number of compared marks."""
        return self.same + self.rounding + self.behind + (self.first is not None)


NO_MARKS = MarkComparison()


def marks_of_run(path: Path) -> RunMarks:
    """The marks of a run, see `marks_of_ranks`. Raises the errors of `RunFolder`."""
    files_by_rank = RunFolder.open(path).mark_files().values()
    return marks_of_ranks([[mark for file in files for mark in read_marks(file)] for files in files_by_rank])


def marks_of_ranks(ranks: Sequence[Iterable[Mark]]) -> RunMarks:
    """The marks of several ranks, joined: in the order of their steps, and in a step in the order of ranks.

    If several processes of a rank have the same mark, that of the first counts.
    """
    by_rank: list[dict[tuple[str, int], Mark]] = [{} for _ in ranks]
    for marks, own in zip(ranks, by_rank, strict=True):
        for mark in marks:
            own.setdefault((mark.name, mark.occurrence), mark)
    order: dict[tuple[str, int], tuple[int, int, int]] = {}
    for rank, own in reversed([*enumerate(by_rank)]):  # the first rank with a mark decides
        steps = accumulate((mark.step for mark in own.values()), max)  # evaluations have no number
        order.update({key: (step, rank, index) for index, (key, step) in enumerate(zip(own, steps, strict=True))})
    values = {key: _joined([own[key] for own in by_rank if key in own]) for key in sorted(order, key=order.__getitem__)}
    return RunMarks(values, max(len(by_rank), 1), any(len(own) >= MAX_MARKS for own in by_rank))


def _joined(parts: Sequence[Mark]) -> MarkedValue:
    """What several ranks hold of a value. Parts with the same bits are the whole value, except counts: two ranks may
    have the same number of tokens."""
    first = parts[0].sketch
    is_replicated = first.fingerprint is not None and all(
        part.sketch.fingerprint == first.fingerprint for part in parts
    )
    is_count = first.size == 1 and all(element.is_integer() for element in first.elements)
    if len(parts) == 1 or (is_replicated and not is_count):
        return MarkedValue((parts[0],), first, len(parts))
    return MarkedValue(tuple(parts), join([part.sketch for part in parts]), len(parts))


def compare_marks(a: RunMarks, b: RunMarks) -> MarkComparison:
    """Compare the marks of two runs, in the order of the run with fewer ranks."""
    common = [key for key in (b if b.ranks < a.ranks else a).values if key in a.values and key in b.values]
    same = rounding = behind = 0
    worst, first, after = 0.0, None, None
    for key in common:
        pair = a.values[key], b.values[key]
        elements = _elements(*pair)
        results = _distance(*pair, elements)
        allowed = _rounding(*pair, elements, worst)
        if first is not None:
            behind += results > allowed
            rounding += 0 < results <= allowed
        elif results > allowed:
            first = MarkDifference(*key, after, results, allowed, pair, elements, *_relation(*pair, allowed))
        else:
            worst, after = max(worst, results), key
            rounding += results > 0
        same += results == 0
    return MarkComparison(same, rounding, behind, first, _counts(a, b), (a.is_full, b.is_full))


def _counts(a: RunMarks, b: RunMarks) -> tuple[tuple[str, int, int], ...]:
    own, other = Counter(name for name, _ in a.values), Counter(name for name, _ in b.values)
    return tuple((name, own[name], other[name]) for name in {**own, **other} if own[name] != other[name])


def _rounding(a: MarkedValue, b: MarkedValue, elements: Elements | None, before: float) -> float:
    """How far a mark may be apart by rounding, if the marks before it are so far apart."""
    dtypes = [part.sketch.dtype for value in (a, b) for part in value.parts]
    if not any(map(unit, dtypes)):
        return 0.0 if elements is not None else SKETCHED
    precisions = (part.precision for value in (a, b) for part in value.parts)
    coarsest = max(_SINGLE, *map(unit, dtypes), *map(unit, precisions))
    return TIMES * (coarsest + _SINGLE * math.sqrt(WIDTH)) + GROWS * before


# -- distances ---------------------------------------------------------------------------------------------------------


def _distance(a: MarkedValue, b: MarkedValue, elements: Elements | None) -> float:
    """The relative distance of two values. It is exact where all elements are known, and positions are row-major.

    Ranks may hold terms of a value only if the other run has another number of parts.
    """
    if elements is None:
        exact = math.inf
    elif elements.largest in (0.0, math.inf):
        exact = elements.largest
    else:
        exact = max(map(_exact_distance, map(_numbers, a.parts), map(_numbers, b.parts)))
    if elements is not None and len(a.parts) == 1:
        return exact
    return min(exact, distance(a.sketch, b.sketch, summands=len(a.parts) != len(b.parts)))


def _exact_distance(a: Sequence[float], b: Sequence[float]) -> float:
    pairs = [(x, y) for x, y in zip(a, b, strict=True) if math.isfinite(x) and math.isfinite(y)]
    scale = max(math.hypot(*(x for x, _ in pairs)), math.hypot(*(y for _, y in pairs)))
    return math.hypot(*(x - y for x, y in pairs)) / scale if scale else 0.0


def _elements(a: MarkedValue, b: MarkedValue) -> Elements | None:
    """The differences of all elements, if both runs have them: those of the rank with the largest one."""
    if [part.sketch.size for part in a.parts] != [part.sketch.size for part in b.parts]:
        return None
    if not all(part.packed_values for value in (a, b) for part in value.parts):
        return None
    of_ranks = (_differences(x, y, rank) for rank, (x, y) in enumerate(zip(a.parts, b.parts, strict=True)))
    return max((each for each in of_ranks if each is not None), key=lambda each: each.largest, default=None)


def _differences(a: Mark, b: Mark, rank: int) -> Elements | None:
    own, other = _numbers(a), _numbers(b)
    if len(own) != len(other):  # complex numbers and real ones
        return None
    differences = [_difference(x, y) for x, y in zip(own, other, strict=True)]
    index = max(range(len(differences)), key=differences.__getitem__)
    mean = math.fsum(differences) / len(differences)
    return Elements(differences[index], index, (own[index], other[index]), mean, len(differences), rank)


def _difference(x: float, y: float) -> float:
    """The absolute difference; infinite if one number alone is not finite."""
    if x == y or (math.isnan(x) and math.isnan(y)):
        return 0.0
    apart = abs(x - y)
    return apart if math.isfinite(apart) else math.inf


def _numbers(mark: Mark) -> Sequence[float]:
    numbers = array("f")
    numbers.frombytes(mark.packed_values)
    return numbers


def _relation(a: MarkedValue, b: MarkedValue, allowed: float) -> tuple[float | None, bool]:
    """The factor between two values, if one explains their difference; and whether only their order may differ."""
    own, other = a.sketch, b.sketch
    if max(len(a.parts), len(b.parts)) > 1 or own.size != other.size or own.size < 2:
        return None, False
    if not (math.isfinite(own.norm) and math.isfinite(other.norm)):
        return None, False
    if not own.norm or not other.norm or not own.packed_projections or not other.packed_projections:
        return None, False
    p, q = own.projections, other.projections
    factor = sum(x * y for x, y in zip(p, q, strict=True)) / (sum(x * x for x in p) or 1.0)
    rest = math.sqrt(sum((y - factor * x) ** 2 for x, y in zip(p, q, strict=True)) / len(p)) / other.norm
    if rest <= allowed:
        return factor, False
    noise = allowed * own.norm
    equal_sums = abs(own.total - other.total) <= noise * math.sqrt(own.size)
    return None, equal_sums and abs(own.norm - other.norm) <= noise
