"""Compute the geometry of plots over steps, on a linear or a logarithmic axis. Positions are percentages."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass

LEFT, RIGHT, TOP, BOTTOM = 1.0, 99.0, 6.0, 94.0
"""Bounds of the lines, so that they are not clipped."""
FLOOR = 84.0
"""Position of the lowest decade of a logarithmic axis if there are zeros, which are at `BOTTOM`."""
TICKS = 5
"""Maximum numbers at an axis."""
MAX_POINTS = 300
"""Parts of a long series; of each part, the lowest and the highest point of each line are drawn."""

Values = Sequence[float | None]


@dataclass(frozen=True, slots=True)
class Tick:
    """A number at the axis."""

    label: str
    at: float


@dataclass(frozen=True, slots=True)
class Line:
    """One line: `path` joins consecutive steps, `dots` has each step, `lost` are the positions of numbers that are not
    finite. `tone` numbers the colour."""

    name: str
    tone: int
    path: str
    dots: str
    lost: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Plot:
    """A plot, its description in words, and the data that its script shows for a step."""

    title: str
    words: str
    lines: tuple[Line, ...]
    ticks: tuple[Tick, ...]
    first: int
    last: int
    lost: int
    points: str


@dataclass(frozen=True, slots=True)
class _Axis:
    low: float
    high: float
    logarithmic: bool
    bottom: float = BOTTOM

    def at(self, value: float) -> float:
        if self.logarithmic and value <= 0:
            return BOTTOM
        return self.along(math.log10(value) if self.logarithmic else value)

    def along(self, value: float) -> float:
        """Return the position of a number on the axis; a logarithmic axis takes its power of ten."""
        share = min(max((value - self.low) / (self.high - self.low), 0.0), 1.0)
        return round(self.bottom - (self.bottom - TOP) * share, 2)


def plot(title: str, steps: Sequence[int], lines: Sequence[tuple[str, int, Values]], logarithmic: bool = False) -> Plot:
    """Return the plot of several lines (name, tone, a value for each step; None is not finite) over the same steps.

    On a logarithmic axis, zeros are below it, labelled 0; negative numbers are not allowed.
    """
    indices = _kept(len(steps), [values for _, _, values in lines])
    own_steps = [steps[index] for index in indices]
    thin = [(name, tone, [values[index] for index in indices]) for name, tone, values in lines]
    finite = [value for _, _, values in thin for value in values if value is not None]
    axis, ticks = _logarithmic(finite) if logarithmic else _linear(finite)
    first, last = (steps[0], steps[-1]) if steps else (0, 0)
    positions = [round(LEFT + (RIGHT - LEFT) * (step - first) / max(last - first, 1), 2) for step in own_steps]
    drawn = tuple(_line(name, tone, values, positions, axis) for name, tone, values in thin)
    points = {
        "at": positions,
        "steps": own_steps,
        "lines": [{"name": name, "values": values} for name, _, values in thin],
    }
    words = f"{title}, steps {first:,} to {last:,}: {'; '.join(_in_words(name, values) for name, _, values in lines)}"
    lost = sum(any(values[index] is None for _, _, values in lines) for index in range(len(steps)))
    return Plot(title, words, drawn, ticks, first, last, lost, json.dumps(points))


def number(value: float | None, digits: int = 3) -> str:
    """Return a measure as text for a plot or a table."""
    return "not finite" if value is None else f"{value:.{digits}g}"


def _in_words(name: str, values: Values) -> str:
    finite = [value for value in values if value is not None]
    if not finite:
        return f"{name} not finite" if values else f"{name} nothing"
    return f"{name} from {number(min(finite))} to {number(max(finite))}"


def _kept(count: int, lines: Sequence[Values]) -> list[int]:
    """Return the indices to draw: all of a short series; extremes and non-finite numbers in each part of a long one."""
    if count <= 2 * MAX_POINTS:
        return list(range(count))
    kept = {0, count - 1}
    for part in range(MAX_POINTS):
        indices = range(part * count // MAX_POINTS, (part + 1) * count // MAX_POINTS)
        for values in lines:
            finite = [(value, index) for index in indices if (value := values[index]) is not None]
            if finite:
                kept |= {min(finite)[1], max(finite)[1]}
            kept.update([index for index in indices if values[index] is None][:1])
    return sorted(kept)


def _line(name: str, tone: int, values: Values, positions: Sequence[float], axis: _Axis) -> Line:
    path, dots, joined = [], [], False
    for position, value in zip(positions, values, strict=True):
        if value is None:
            joined = False
            continue
        at = f"{position} {axis.at(value)}"
        path.append(f"{'L' if joined else 'M'}{at}")
        dots.append(f"M{at}h0")
        joined = True
    lost = tuple(position for position, value in zip(positions, values, strict=True) if value is None)
    return Line(name, tone, "".join(path), "".join(dots), lost)


def _linear(values: Sequence[float]) -> tuple[_Axis, tuple[Tick, ...]]:
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    if not math.isfinite(high - low):
        low, high = low / 2, high / 2  # of all that can be drawn the middle
    if high - low <= abs(high) * 1e-12:
        room = abs(high) / 10 or 1.0
        low, high = low - room, high + room
    axis = _Axis(low, high, logarithmic=False)
    distance = _tick_distance(high - low)
    if not (distance > 0 and math.isfinite(low / distance)):
        return axis, ()
    first = math.ceil(low / distance)
    digits = max(0, -math.floor(math.log10(distance) + 1e-9))
    numbers = [multiple * distance for multiple in range(first, first + TICKS + 1) if multiple * distance <= high]
    few = distance >= 1e-4 and max(abs(low), abs(high)) < 1e6
    labels = [(f"{value:.{digits}f}" if few else f"{value:.3g}") if value else "0" for value in numbers]
    return axis, tuple(Tick(label, axis.at(value)) for label, value in zip(labels, numbers, strict=True))


def _tick_distance(span: float) -> float:
    """Return the smallest of 1, 2 and 5 times a power of ten of which `TICKS` cover the span."""
    least = span / TICKS
    power = 10.0 ** math.floor(math.log10(least)) if least > 0 else 0.0
    return next((power * factor for factor in (1, 2, 5) if power * factor >= least), power * 10)


def _logarithmic(values: Sequence[float]) -> tuple[_Axis, tuple[Tick, ...]]:
    above = [math.log10(value) for value in values if value > 0]
    zeros = len(above) < len(values) or not values
    if not above:
        return _Axis(0, 1, logarithmic=True), (Tick("0", BOTTOM),)
    low, high = math.floor(min(above)), math.ceil(max(above))
    high = max(high, low + 1)
    axis = _Axis(low, high, logarithmic=True, bottom=FLOOR if zeros else BOTTOM)
    every = math.ceil((high - low) / TICKS)
    ticks = [Tick(_power(power), axis.along(power)) for power in range(low, high + 1, every)]
    return axis, (*ticks, *([Tick("0", BOTTOM)] if zeros else []))


def _power(power: int) -> str:
    return f"{10.0**power:g}" if -3 <= power <= 3 else f"1e{power}"
