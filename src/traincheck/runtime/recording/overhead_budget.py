"""Chooses the sampling interval that keeps the overhead within a share of the step time.

Note [Cost of an observed step]
The cost of an observed step is TrainCheck's own work on the training thread plus the work of its background thread. A
plain step has neither cost; skipped steps are plain steps.

On an accelerator, most of our own work is waiting for kernels that the program would wait for anyway. There the budget
compares observed steps with skipped steps, as soon as it has enough skipped steps.

All figures are medians, so that steps that save a checkpoint or wait for data have no effect. The background thread
processes several windows in a row, so its time is divided by the number of windows. The budget widens an interval that
is too small at once, and narrows an interval that is too large step by step.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Callable

WIDEST = 10_000
"""Largest interval: observe at least one step in this many, even above the budget. Also the interval before the first
measurement."""

KEPT = 15
"""Steps in a median: half a dozen slow steps do not move it."""
ENOUGH = 5
"""Skipped steps that are necessary before their median counts as the time of a plain step."""
NARROWING = 0.8
ROUNDING = 1e-6
LEAST_OF_OURS = 0.25
"""Smallest share of our own work that counts as cost rather than waiting."""


class Costs:
    """Durations of the latest windows of one stage, in seconds."""

    def __init__(self) -> None:
        self._plain: deque[float] = deque(maxlen=KEPT)
        self._walls: deque[float] = deque(maxlen=KEPT)
        self._ours: deque[float] = deque(maxlen=KEPT)
        self._background: deque[float] = deque(maxlen=KEPT)

    def unwatched(self, wall: float) -> None:
        """Add the duration of a skipped window."""
        self._plain.append(wall)

    def watched(self, wall: float, ours: float) -> None:
        """Add the duration of an observed window and our own share of it."""
        self._walls.append(wall)
        self._ours.append(ours)

    def worked_off(self, seconds: float) -> None:
        """Add the background thread's time per window."""
        self._background.append(seconds)

    def interval(self, share: float, *, waits: bool) -> int | None:
        """Smallest interval within the share; None before the first observed window."""
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
    """Chooses the interval that keeps the overhead within a share of the time.

    `background` returns the seconds and windows that the background thread has processed. `waits` says whether our own
    work may be waiting for an accelerator.
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
        self._interval = 0  # 0 before the first measurement
        self._costs: dict[str, Costs] = {}
        self._background = (0.0, 0)  # the previous result of `background`
        self._unwatched = 0

    @property
    def share(self) -> float | None:
        """Allowed share of the time; None without a limit."""
        return self._share

    @share.setter
    def share(self, share: float | None) -> None:
        self._share, self._interval = share, 0
        self._adapt()

    @property
    def interval(self) -> int:
        """Current interval."""
        if self._share is None:
            return 1
        return self._interval or WIDEST

    def took(self, stage: str, watched: bool, wall: float, ours: float) -> None:
        """Add a window's duration and our own share of it."""
        costs = self._costs.get(stage)
        if costs is None:
            costs = self._costs[stage] = Costs()
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
