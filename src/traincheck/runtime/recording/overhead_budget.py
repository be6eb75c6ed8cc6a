"""The budget: of how many steps one may be watched, so that watching takes no more than a share of the time of a step.

Note [What watching costs]
A watched step costs what our own work takes in it, and what the background thread takes for it. Plain is a step of
which neither is left, as steps are that are not watched. Where there is an accelerator, our own work is mostly to wait
for what the program has asked of it, which the program would wait for itself; so there it is found out by how much a
watched step is longer than others, as soon as there are others. Of all that medians are taken, so that a step that
saves or waits for data says nothing. (The thread beside works off several windows in a row: what it took counts by the
window.) An interval that turns out too small is widened at once, one that is too large narrows step by step.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Callable

WIDEST = 10_000
"""Of so many steps one is watched in any case: even where that costs more than it may, it is worth knowing. Also what
holds while nothing was measured."""

KEPT = 15
"""Steps that medians are taken of: half a dozen slow ones do not move them."""
ENOUGH = 5
"""Steps that were not watched, before one of them counts as what a plain step takes."""
NARROWING = 0.8
ROUNDING = 1e-6
LEAST_OF_OURS = 0.25
"""How much of our own work is no waiting, at least."""


class Costs:
    """What the latest windows of one stage took, in seconds."""

    def __init__(self) -> None:
        self._plain: deque[float] = deque(maxlen=KEPT)
        self._walls: deque[float] = deque(maxlen=KEPT)
        self._ours: deque[float] = deque(maxlen=KEPT)
        self._background: deque[float] = deque(maxlen=KEPT)

    def unwatched(self, wall: float) -> None:
        """A window that was not watched took so long."""
        self._plain.append(wall)

    def watched(self, wall: float, ours: float) -> None:
        """A window that was watched took so long, with what was our own work."""
        self._walls.append(wall)
        self._ours.append(ours)

    def worked_off(self, seconds: float) -> None:
        """The thread beside has worked off some windows, and took so long for each."""
        self._background.append(seconds)

    def interval(self, share: float, *, waits: bool) -> int | None:
        """The least interval that keeps to the share, None where nothing was watched yet."""
        if not self._walls:
            return None
        cost = ours = statistics.median(self._ours)
        plain = statistics.median(map(float.__sub__, self._walls, self._ours))
        if len(self._plain) >= ENOUGH:
            plain = statistics.median(self._plain)
            if waits:
                longer = statistics.median(self._walls) - plain
                cost = min(ours, max(longer, LEAST_OF_OURS * ours))
        cost += statistics.median(self._background or (0.0,))
        allowed = share * plain
        return max(1, math.ceil(cost / allowed - ROUNDING)) if cost < WIDEST * allowed else WIDEST


class Budget:
    """Says which interval keeps to a share of the time. `background` tells the seconds that the thread beside has taken
    so far and the windows that it has worked off, `waits` whether our own work may be to wait for an accelerator.
    """

    def __init__(
        self,
        share: float | None,
        background: Callable[[], tuple[float, int]] = lambda: (0.0, 0),
        *,
        waits: bool = False,
    ) -> None:
        self.background = background
        self.waits = waits
        self._share = share
        self._interval = 0  # nothing was measured yet
        self._costs: dict[str, Costs] = {}
        self._background = (0.0, 0)  # as it was told last
        self._unwatched = 0

    @property
    def share(self) -> float | None:
        """The share, None where there is no limit."""
        return self._share

    @share.setter
    def share(self, share: float | None) -> None:
        self._share, self._interval = share, 0
        self._adapt()

    @property
    def interval(self) -> int:
        """The interval that keeps to the share."""
        if self._share is None:
            return 1
        return self._interval or WIDEST

    def took(self, stage: str, watched: bool, wall: float, ours: float) -> None:
        """A window took so long, and of that our own work."""
        costs = self._costs.setdefault(stage, Costs())
        if not watched:
            costs.unwatched(wall)
            self._unwatched += 1
            if self._unwatched % ENOUGH == 0:
                self._adapt()
            return
        costs.watched(wall, ours)
        seconds, windows = self.background()
        before, done = self._background
        if windows > done:
            costs.worked_off((seconds - before) / (windows - done))
            self._background = seconds, windows
        self._adapt()

    def _adapt(self) -> None:
        if self._share is None:
            return
        intervals = [costs.interval(self._share, waits=self.waits) for costs in self._costs.values()]
        needed = max((interval for interval in intervals if interval is not None), default=0)
        if needed:
            self._interval = max(needed, int(NARROWING * self._interval))
