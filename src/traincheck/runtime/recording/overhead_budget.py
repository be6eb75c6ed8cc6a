"""Chooses the sampling interval that keeps the overhead within a share of the step time.

Note [Cost of an observed step]
The cost of an observed step is TrainCheck's own work on the training thread plus the work of its background thread. The
meter misses a part of it: the training thread waits for Python's lock, and finds cold caches. So the cost is the
difference between observed and skipped steps, if that is larger. A difference below the noise of skipped steps does not
count.

On an accelerator, most of our own work is waiting for kernels that the program would wait for anyway. There the
difference counts even if it is smaller than our own work.

All figures are medians, so that steps that save a checkpoint or wait for data have no effect. The background thread
processes several windows in a row, so its time is divided by the number of windows. A step after a gap costs several
times as much as one after an observed step: everything is cold, and sources report again. So the first gap makes the
budget forget the first steps. The budget widens an interval that is too small at once, and narrows an interval that is
too large step by step.

Note [Debt]
The first steps are all observed, and use up the share of many later steps. So the budget adds up the cost of observed
steps, and the time of all steps. While the sum of the costs is above the share, the interval is `IN_DEBT` times as
wide: most of the share pays the debt, and TrainCheck still looks at the run now and then.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Callable

WIDEST = 10_000
"""Largest interval: observe at least one step in this many, even above the budget. Also the interval before the first
measurement."""

IN_DEBT = 4
"""Factor of the interval while the budget is spent, see Note [Debt]."""

KEPT = 15
"""Steps in a median: half a dozen slow steps do not move it."""
ENOUGH = 5
"""Skipped steps that are necessary before their median counts as the time of a plain step."""
NARROWING = 0.8
ROUNDING = 1e-6
LEAST_OF_OURS = 0.25
"""Smallest share of our own work that counts as cost rather than waiting."""
NOISE = 1.5
"""Median deviations of skipped steps up to which a difference is noise. This is twice the standard error of a
difference of two medians of `KEPT` steps."""
AHEAD = 2.0
"""Observed steps that the budget may be ahead of the share: a burst is not interrupted."""


class Costs:
    """Durations of the latest windows of one stage, in seconds."""

    def __init__(self) -> None:
        self._plain: deque[float] = deque(maxlen=KEPT)
        self._walls: deque[float] = deque(maxlen=KEPT)
        self._ours: deque[float] = deque(maxlen=KEPT)
        self._background: deque[float] = deque(maxlen=KEPT)
        self._had_gap = False

    def unwatched(self, wall: float) -> None:
        """Add the duration of a skipped window."""
        self._plain.append(wall)

    def watched(self, wall: float, ours: float, *, after_gap: bool = False) -> None:
        """Add the duration of an observed window and our own share of it."""
        if after_gap and not self._had_gap:
            self._had_gap = True
            self._walls.clear()
            self._ours.clear()
        self._walls.append(wall)
        self._ours.append(ours)

    def worked_off(self, seconds: float) -> None:
        """Add the background thread's time per window."""
        self._background.append(seconds)

    def measure(self, *, waits: bool) -> tuple[float, float] | None:
        """The cost of an observed window, and the time of a plain one; None before the first observed window."""
        if not self._walls:
            return None
        ours, background = statistics.median(self._ours), statistics.median(self._background or (0.0,))
        plain = statistics.median(map(float.__sub__, self._walls, self._ours))
        if len(self._plain) < ENOUGH:
            return ours + background, plain
        plain = statistics.median(self._plain)
        longer = statistics.median(self._walls) - plain
        if waits:
            return min(ours, max(longer, LEAST_OF_OURS * ours)) + background, plain
        noise = NOISE * statistics.median(abs(wall - plain) for wall in self._plain)
        return max(ours + background, longer - noise), plain

    def interval(self, share: float, *, waits: bool) -> int | None:
        """Smallest interval within the share; None before the first observed window."""
        measured = self.measure(waits=waits)
        if measured is None:
            return None
        cost, allowed = measured[0], share * measured[1]
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
        self._gap = False  # the previous window was skipped
        self._spent = self._elapsed = 0.0  # cost of observed windows, and time of all as plain ones
        self._cost = 0.0  # of an observed window of the last stage

    @property
    def share(self) -> float | None:
        """Allowed share of the time; None without a limit."""
        return self._share

    @share.setter
    def share(self, share: float | None) -> None:
        self._share, self._interval = share, 0
        self._spent = self._elapsed = 0.0
        self._adapt()

    @property
    def interval(self) -> int:
        """Current interval."""
        if self._share is None:
            return 1
        return self._interval or WIDEST

    @property
    def is_spent(self) -> bool:
        """Whether observed windows have cost more than the share so far, see Note [Debt]."""
        return self._share is not None and self._spent > self._share * self._elapsed + AHEAD * self._cost

    def took(self, stage: str, watched: bool, wall: float, ours: float, windows: int = 1) -> None:
        """Add a window's duration and our own share of it, the means of so many windows."""
        costs = self._costs.get(stage)
        if costs is None:
            costs = self._costs[stage] = Costs()
        after_gap, self._gap = self._gap, not watched
        if not watched:
            costs.unwatched(wall)
            self._elapsed += wall * windows
            self._unwatched += 1
            if self._unwatched % ENOUGH == 0:
                self._adapt()
            return
        costs.watched(wall, ours, after_gap=after_gap)
        seconds, done_now = self.background()
        before, done = self._background
        if done_now > done:
            costs.worked_off((seconds - before) / (done_now - done))
            self._background = seconds, done_now
        measured = costs.measure(waits=self.waits)
        if measured is not None:
            self._cost = measured[0]
            self._spent += measured[0]
            self._elapsed += measured[1]
        self._adapt()

    def _adapt(self) -> None:
        if self._share is None:
            return
        intervals = [costs.interval(self._share, waits=self.waits) for costs in self._costs.values()]
        needed = max((interval for interval in intervals if interval is not None), default=0)
        if needed:
            self._interval = max(needed, int(NARROWING * self._interval))
