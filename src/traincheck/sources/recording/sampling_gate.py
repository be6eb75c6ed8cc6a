"""Gaps: which windows are watched, what is taken off while none is, and what sources forget before the next.

Note [Taken off]
A guarded function that returns at once is cheap. Not so what torch and Python do only because we are there: a mode
makes each function of torch several times slower, a global hook each module, a profiler each function. These are taken
off, and put on again; all of them or none, for a window in which one of them was missing would look as if things were
left out. What cannot be taken off safely stays on and tells nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from traincheck.sources.recording.overhead import Lap


class Costly(Protocol):
    """Something that makes the program slower by being there."""

    def take_off(self) -> None:
        """Take it off, if that is safe here and it is still on."""

    def may_put_on(self) -> bool:
        """Whether it is on, or can be put on here."""

    def put_on(self) -> None:
        """Put it on again, if it was taken off."""


class Gaps:
    """Asks which steps are watched, and does what is to be done before and after those that are not.

    `watches` is asked once for each step, in order; `took` is told the stage of each window, whether it was watched as
    a whole, and how long it took.
    """

    def __init__(self) -> None:
        self.watches: Callable[[int], bool] = lambda step: True
        self.took: Callable[[str, bool, Lap], object] = lambda stage, watched, lap: None
        self.costly: list[Costly] = []
        self.forgetting: list[Callable[[], object]] = []
        self.telling: list[Callable[[], object]] = []  # those of `forgetting` that only have things told anew
        self._step = -1
        self._watched = True

    def is_watched(self, step: int) -> bool:
        """Whether `step` is watched, and what comes right before it."""
        if step != self._step:
            self._step, self._watched = step, self.watches(step)
        return self._watched

    def forget(self) -> None:
        """Have all sources forget what was."""
        for forget in self.forgetting:
            forget()

    def tell_anew(self) -> None:
        """Have all sources tell anew what they tell once, or when it changes."""
        for tell in self.telling:
            tell()

    def take_off(self) -> None:
        """Take off what can be."""
        for one in self.costly:
            one.take_off()

    def put_on(self) -> bool:
        """Put all on again; where that cannot be for one of them, none, and False is returned."""
        if not all(one.may_put_on() for one in self.costly):
            return False
        for one in self.costly:
            one.put_on()
        return True
