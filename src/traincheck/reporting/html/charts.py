"""Compute the geometry of the SVG charts on the page. Positions are percentages, or units of a drawing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from traincheck.vocab.finding import Cost
from traincheck.vocab.finding_details import UNKNOWN, Agreement, Aspect, Curve, History, Strip

WIDTH, HEIGHT = 320, 72
"""Units of the drawing of a curve. The browser stretches it to the available space."""

MARGIN = 6
"""Units around a curve, so that its line is not clipped."""

STEPS_OF_SHARES = 4
"""Shades of a matrix between `none` and `all`."""

MAX_NUMBERS = 12
"""Maximum columns of a matrix with numbers in its cells."""


@dataclass(frozen=True, slots=True)
class Block:
    """Consecutive steps with the same state."""

    left: float
    width: float
    tone: str


@dataclass(frozen=True, slots=True)
class Track:
    """The drawing of a strip, and its description in words."""

    blocks: tuple[Block, ...]
    words: str


@dataclass(frozen=True, slots=True)
class Axis:
    """The marked step of a history as a percentage, or None if the history does not contain it."""

    first: int
    last: int
    mark: int
    at: float | None
    width: float


def axis(history: History) -> Axis:
    """Return the axis of a history."""
    width = 100 / max(len(history.steps), 1)
    at = round(history.steps.index(history.mark) * width, 3) if history.mark in history.steps else None
    return Axis(history.steps[0], history.steps[-1], history.mark, at, round(width, 3))


def track(strip: Strip, aspect: Aspect, steps: Sequence[int]) -> Track:
    """Return the blocks of a strip. Unknown states stay blank."""
    blocks, words, position = [], [], 0
    for state, group in groupby(strip.states):
        length = len(list(group))
        first, last = steps[position], steps[position + length - 1]
        span = f"step {first:,}" if first == last else f"steps {first:,} to {last:,}"
        if state == UNKNOWN:
            words.append(f"not recorded in {span}")
        else:
            kind = aspect.states[state]
            words.append(f"{kind.words} in {span}")
            left, width = 100 * position / len(steps), 100 * length / len(steps)
            blocks.append(Block(round(left, 3), round(width, 3), kind.tone))
        position += length
    return Track(tuple(blocks), f"{aspect.title}: {', '.join(words)}")


@dataclass(frozen=True, slots=True)
class Line:
    """The drawing of a curve: `path` joins consecutive steps, `dots` has each step, `lost` are the positions of numbers
    that are not finite, `mark` is the position of the marked step."""

    title: str
    path: str
    dots: str
    mark: float | None
    lost: tuple[float, ...]
    low: str
    high: str
    first: int
    last: int
    words: str


def line(curve: Curve) -> Line:
    """Return the drawing of a curve, in `WIDTH` by `HEIGHT` units."""
    finite = [value for _, value in curve.points if math.isfinite(value)]
    low, high = (min(finite), max(finite)) if finite else (0.0, 0.0)
    first, last = curve.first, curve.last

    def x(step: int) -> float:
        return round(MARGIN + (WIDTH - 2 * MARGIN) * (step - first) / max(last - first, 1), 2)

    def y(value: float) -> float:
        share = (value - low) / (high - low) if high - low > 0 and math.isfinite(high - low) else 0.5
        return round(HEIGHT - MARGIN - (HEIGHT - 2 * MARGIN) * share, 2)

    path, dots, before = [], [], None
    for step, value in curve.points:
        if not math.isfinite(value):
            before = None
            continue
        path.append(f"{'L' if before == step - 1 else 'M'}{x(step)} {y(value)}")
        dots.append(f"M{x(step)} {y(value)}h0")
        before = step
    lost = tuple(x(step) for step, value in curve.points if not math.isfinite(value))
    words = f"{curve.title}: from {_number(low)} to {_number(high)} in steps {first:,} to {last:,}"
    words += f", not finite in {len(lost)} of them" if lost else ""
    mark = x(curve.mark) if first <= curve.mark <= last else None
    ends = _number(low), _number(high)
    return Line(curve.title, "".join(path), "".join(dots), mark, lost, *ends, first, last, words)


def _number(value: float) -> str:
    return f"{value:.3g}"


@dataclass(frozen=True, slots=True)
class Cell:
    """The agreement of two ranks: a shade from 0 (none) to `STEPS_OF_SHARES` (all), and words."""

    shade: int
    number: str
    words: str


def matrix(agreement: Agreement) -> tuple[tuple[str, tuple[Cell, ...]], ...]:
    """Return the rows of the matrix: the label, and a cell for each column."""
    few = len(agreement.labels) <= MAX_NUMBERS
    rows = []
    for label, counts in zip(agreement.labels, agreement.agreeing, strict=True):
        cells = tuple(
            Cell(
                _shade(count, agreement.values),
                f"{count:,}" if few else "",
                f"rank {label} and {other}: {count:,} of {agreement.values:,} the same",
            )
            for other, count in zip(agreement.labels, counts, strict=True)
        )
        rows.append((label, cells))
    return tuple(rows)


def _shade(count: int, total: int) -> int:
    """Return the shade. Only complete agreement has the last shade, and only complete disagreement the first."""
    if count >= total:
        return STEPS_OF_SHARES
    if not count:
        return 0
    return min(max(int(STEPS_OF_SHARES * count / total), 1), STEPS_OF_SHARES - 1)


@dataclass(frozen=True, slots=True)
class Bar:
    """A part of the cost; `width` is a percentage of the largest part."""

    name: str
    share: float
    width: float
    in_background: bool


MAX_BARS = 8
"""Parts of the cost with a bar; the rest is small."""


def cost_bars(cost: Cost | None) -> tuple[Bar, ...]:
    """Return the parts of the cost on the program's threads and in the background, the largest first."""
    if cost is None:
        return ()
    parts = [(name, cost.share(seconds), False) for name, seconds in cost.sources.items()]
    parts += [(name, cost.share(seconds), True) for name, seconds in cost.background.items()]
    parts = sorted((part for part in parts if part[1] > 0), key=lambda part: -part[1])[:MAX_BARS]
    return tuple(
        Bar(name, share, round(100 * share / parts[0][1], 2), in_background) for name, share, in_background in parts
    )
