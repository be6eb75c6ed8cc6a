"""Bands: the range of a number in good runs, with a margin.

Note [Octaves]
A number is compared by its octave, the nearest power of two, which is written as `1/512` or `4`. Twice as large is one
octave, at any size, so one margin suits all numbers.

Note [How often a good run leaves a band]
Assume that n good runs and a further run are exchangeable: their order says nothing. One of n + 1 runs has the highest
number, and each is equally likely to have it. So the further run is higher than all others in at most 1 / (n + 1) of
cases, and lower in as many (a conformal prediction interval, see Vovk, Gammerman and Shafer, "Algorithmic Learning in a
Random World", 2005). That is at most 2 / (n + 1) for each number without a margin. A margin can only lower this share.
"""

from __future__ import annotations

from collections.abc import Collection
from fractions import Fraction
from typing import NamedTuple

MAX_OCTAVE = 200
"""Larger numbers and their inverses make no octave."""

_TO, _WITHIN = " to ", ", within a factor of "


class Band(NamedTuple):
    """The octaves from `lowest` to `highest` that good runs showed, and how many more on either side are allowed."""

    lowest: int
    highest: int
    margin: int

    def __str__(self) -> str:
        return f"{self.shown}{_WITHIN}{text_of(self.margin)}"

    @property
    def shown(self) -> str:
        """The range of good runs, in words."""
        if self.lowest == self.highest:
            return text_of(self.lowest)
        return f"{text_of(self.lowest)}{_TO}{text_of(self.highest)}"

    @property
    def allowed(self) -> range:
        """The octaves in the band."""
        return range(self.lowest - self.margin, self.highest + self.margin + 1)


def text_of(octave: int) -> str:
    """An octave in words: `1/512` or `4`."""
    return str(Fraction(2) ** octave)


def octave_of(text: str) -> int | None:
    """The octave that `text_of` wrote; None for any other text."""
    over, _, number = text.rpartition("/")
    if over not in ("", "1") or not number.isdecimal() or len(number) > MAX_OCTAVE:
        return None
    octave = int(number).bit_length() - 1
    if not 0 <= octave <= MAX_OCTAVE or 1 << octave != int(number):
        return None
    return -octave if over else octave


def band_of_text(text: str) -> Band | None:
    """The band that `str` wrote; None for any other text."""
    shown, _, factor = text.partition(_WITHIN)
    lowest, _, highest = shown.partition(_TO)
    octaves = octave_of(lowest), octave_of(highest or lowest), octave_of(factor)
    return None if None in octaves else Band(*octaves)  # type: ignore[arg-type]


def band_of_runs(runs: Collection[Collection[int]], judged: Collection[Collection[int]], least_margin: int) -> Band:
    """The band of several runs, each given by its octaves.

    Leave one run out, and it may lie outside the range of the others. The margin is the largest such distance in
    octaves, plus `least_margin`. Only the runs in `judged` are compared, at least two.
    """
    ranges = [(min(octaves), max(octaves)) for octaves in judged]
    distances = [0]
    for index, (lowest, highest) in enumerate(ranges):
        others = ranges[:index] + ranges[index + 1 :]
        distances.append(min(low for low, _ in others) - lowest)
        distances.append(highest - max(high for _, high in others))
    every = [octave for octaves in runs for octave in octaves]
    return Band(min(every), max(every), least_margin + max(distances))
