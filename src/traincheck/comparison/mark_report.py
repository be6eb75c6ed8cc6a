"""Writes the comparison of marks, as text and as data."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from traincheck.comparison.marks import Elements, MarkComparison, MarkDifference, MarkedValue
from traincheck.vocab.marks import MAX_MARKS

MOST_NAMES = 5


def mark_title(difference: MarkDifference) -> str:
    """Where the difference begins, in words."""
    own = _key(difference.name, difference.occurrence)
    if difference.after is None:
        return f"The first mark of both runs, {own}, has other values"
    return f"The difference begins between the marks {_key(*difference.after)} and {own}"


def _key(name: str, occurrence: int) -> str:
    return f"'{name}'" if occurrence == 1 else f"'{name}' (occurrence {occurrence})"


def mark_lines(marks: MarkComparison, a: str, b: str, *, is_alone: bool) -> Iterator[str]:
    """The comparison of marks for people. `is_alone` is whether the title says where the difference begins."""
    count = f"{marks.compared:,} mark{'s' * (marks.compared != 1)} compared"
    if marks.first is not None:
        if not is_alone:
            yield f"  {mark_title(marks.first)}"
        yield from _describe(marks.first, a, b)
        before = marks.same + marks.rounding
        yield f"  {count}: {before:,} equal up to rounding, {marks.behind:,} differ behind this one"
        yield f"  {_advice(marks.first)}"
    elif marks.compared:
        yield f"  {count}: {marks.same:,} have the same values, {marks.rounding:,} differ by rounding"
    if marks.counts:
        shown = ", ".join(f"'{name}' {own} and {other}" for name, own, other in marks.counts[:MOST_NAMES])
        more = f" and {len(marks.counts) - MOST_NAMES} more" if len(marks.counts) > MOST_NAMES else ""
        yield f"  marks with other numbers of values in {a} and {b}: {shown}{more}"
    for label, is_full in zip((a, b), marks.full, strict=True):
        if is_full:
            yield f"  not compared: marks of {label} after the first {MAX_MARKS:,}"


def _describe(difference: MarkDifference, a: str, b: str) -> Iterator[str]:
    width = max(map(len, (a, b, "elements")))
    for label, value in zip((a, b), difference.values, strict=True):
        yield f"  {label:{width}}  {_place(value)}"
    apart = "other sizes, or numbers that are not finite" if math.isinf(difference.results) else _share(difference)
    yield f"  {'values':{width}}  {apart}"
    for label, value in zip((a, b), difference.values, strict=True):
        yield f"  {label:{width}}  {_value(value)}"
    yield f"  {'elements':{width}}  {_elements(difference.elements, difference.values[0])}"
    if difference.factor is not None:
        yield f"  {'relation':{width}}  {b} has {difference.factor:.6g} times the values of {a}"


def _place(value: MarkedValue) -> str:
    mark = value.first
    step = f"step {mark.step}" if mark.step else "outside training steps"
    ranks = f", {value.ranks} ranks" if value.ranks > 1 else ""
    return f"{step}{f', at {mark.site}' if mark.site else ''}{ranks}"


def _share(difference: MarkDifference) -> str:
    return f"{difference.results:.2g} apart (relative); rounding explains {difference.allowed:.2g}"


def _value(value: MarkedValue) -> str:
    sketch = value.first.sketch
    shape = "x".join(map(str, sketch.shape)) or "a number"
    elements = ", ".join(f"{each:.6g}" for each in sketch.elements)
    precision = value.first.precision
    computed = f" computed in {precision}" if precision not in (sketch.dtype, "float64") else ""
    return f"{sketch.dtype}{computed}, {shape}, norm {sketch.norm:.6g}, elements {elements}"


def _elements(elements: Elements | None, value: MarkedValue) -> str:
    if elements is None:
        size = value.sketch.size
        return f"{size:,} of which the norm, random projections and up to three elements are known"
    x, y = elements.pair
    where = f" of rank {elements.rank}" if len(value.parts) > 1 else ""
    largest = f"the largest difference is {elements.largest:.6g} at index {_index(elements.index, value)}{where}"
    return f"{largest} ({x:.6g} and {y:.6g}), the mean is {elements.mean:.6g}, of {elements.size:,} elements"


def _index(index: int, value: MarkedValue) -> str:
    """An index in the flat value, as an index for each dimension."""
    shape = value.first.sketch.shape
    if len(shape) < 2 or math.prod(shape) <= index:
        return str(index)
    indices: list[int] = []
    for length in reversed(shape):
        index, own = divmod(index, length)
        indices.append(own)
    return str(tuple(reversed(indices)))


def _advice(difference: MarkDifference) -> str:
    if difference.reordered:
        return "Norm and sum are equal: compare the order of the elements (a transposed layout, the order of a batch)."
    if difference.after is None:
        return "Compare the inputs and the weights of both programs, or mark values before this one."
    return "Compare the code between these marks, or mark values between them."


# -- data ------------------------------------------------------------------------------------------------------------


def mark_data(marks: MarkComparison) -> dict[str, Any]:
    """The comparison of marks as JSON data."""
    return {
        "compared": marks.compared,
        "same": marks.same,
        "rounding": marks.rounding,
        "different": marks.behind + (marks.first is not None),
        "first": None if marks.first is None else _difference(marks.first),
        "counts": [{"name": name, "a": own, "b": other} for name, own, other in marks.counts],
        "full": list(marks.full),
    }


def _difference(difference: MarkDifference) -> dict[str, Any]:
    after, elements = difference.after, difference.elements
    return {
        "name": difference.name,
        "occurrence": difference.occurrence,
        "after": None if after is None else {"name": after[0], "occurrence": after[1]},
        "results": _number(difference.results),
        "rounding": difference.allowed,
        "elements": None if elements is None else _elements_data(elements),
        "factor": difference.factor,
        "reordered": difference.reordered,
        "a": _run(difference.values[0]),
        "b": _run(difference.values[1]),
    }


def _elements_data(elements: Elements) -> dict[str, Any]:
    return {
        "size": elements.size,
        "largest": _number(elements.largest),
        "mean": _number(elements.mean),
        "index": elements.index,
        "rank": elements.rank,
        "pair": _numbers(elements.pair),
    }


def _run(value: MarkedValue) -> dict[str, Any]:
    mark = value.first
    return {
        "step": mark.step,
        "site": mark.site,
        "dtype": mark.sketch.dtype,
        "precision": mark.precision,
        "shape": list(mark.sketch.shape),
        "norm": _number(mark.sketch.norm),
        "ranks": value.ranks,
    }


def _numbers(values: Sequence[float]) -> list[float | None]:
    return [_number(value) for value in values]


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None
