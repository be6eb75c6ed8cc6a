"""The courier: delivers alerts in a thread of its own, patiently, and keeps nobody waiting."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from traincheck.reporting.alerts.alert import Alert

MAX_WAITING = 100
"""Alerts that may wait; a run has some dozens of findings at most, and the first ones tell."""

FIRST_DELAY, LONGEST_DELAY = 1.0, 60.0
"""Seconds after the first failed attempt, doubled after each further one, and where that ends."""

PATIENCE = 86_400.0
"""Seconds after which an alert is given up: a day, in which a receiver that is down has been seen to."""

ATTEMPT = 10.0
"""Seconds that an attempt may take."""

AT_THE_END = 5.0
"""Seconds that the end of the run waits for what could not be delivered so far, with `LAST_DELAY` between attempts."""

LAST_DELAY = 0.5


class Undelivered(Exception):
    """An alert was not taken. `final`: it would not be the next time either; `after`: seconds that were asked for."""

    def __init__(self, reason: str, *, final: bool = False, after: float = 0.0) -> None:
        super().__init__(reason)
        self.final = final
        self.after = after


class Carrier(Protocol):
    """A way to deliver alerts. `name` tells people of it, without what is secret; `finishes` says that what was
    begun goes on to its end when nobody waits for it."""

    name: str
    finishes: bool

    def deliver(self, alert: Alert, seconds: float) -> None:
        """Deliver it within so many seconds, or raise Undelivered."""


@dataclass
class _Waiting:
    alert: Alert
    since: float = field(default_factory=time.monotonic)


class Courier:
    """Delivers alerts by a carrier. What it cannot deliver is told through `tell`, once for each time of trouble."""

    def __init__(self, carrier: Carrier, tell: Callable[[str], None], first_delay: float = FIRST_DELAY) -> None:
        self._carrier = carrier
        self._tell = tell
        self._first_delay = first_delay
        self._delay = 0.0
        self._waiting: deque[_Waiting] = deque()
        self._left_out = 0
        self._trouble = ""
        self._under_way = False
        self._ends: float | None = None
        self._news = threading.Condition()
        self._thread = threading.Thread(target=self._work, name="traincheck-alerts", daemon=True)
        self._thread.start()

    def put(self, alert: Alert) -> None:
        """Hand over an alert; never waits. Of too many the later ones are left out, and counted."""
        with self._news:
            if len(self._waiting) < MAX_WAITING:
                self._waiting.append(_Waiting(alert))
                self._news.notify()
            else:
                self._left_out += 1

    def close(self, seconds: float = AT_THE_END) -> None:
        """Try once more what is left, for at most so many seconds, and say what could not be delivered."""
        with self._news:
            self._ends = time.monotonic() + seconds
            self._news.notify()
        self._thread.join(seconds)
        with self._news:
            lost = len(self._waiting) + self._left_out - (self._under_way and self._carrier.finishes)
            self._waiting.clear()
        if lost:
            reason = f": {self._trouble}" if self._trouble else ""
            self._tell(f"{lost} alert{'s' * (lost > 1)} could not be delivered to {self._carrier.name}{reason}")

    # -- on the thread ---------------------------------------------------------------------------------------------

    def _work(self) -> None:
        while (first := self._next()) is not None:
            self._under_way = True
            try:
                self._carrier.deliver(first.alert, self._time_left())
            except Undelivered as error:
                self._put_off(first, error)
            except Exception as error:  # a fault of ours: not to be tried again and again
                self._put_off(first, Undelivered(type(error).__name__, final=True))
            else:
                self._delivered(first)
            self._under_way = False

    def _next(self) -> _Waiting | None:
        """The alert to try now, once it is time; None when there is nothing more to do."""
        with self._news:
            until = time.monotonic() + self._delay
            while True:
                now = time.monotonic()
                if self._ends is not None:
                    until = min(until, now + LAST_DELAY)
                    if now >= self._ends or not self._waiting:
                        return None
                if self._waiting and now >= until:
                    return self._waiting[0]
                self._news.wait(until - now if self._waiting else None)

    def _time_left(self) -> float:
        ends = self._ends
        return ATTEMPT if ends is None else min(ATTEMPT, max(0.1, ends - time.monotonic()))

    def _delivered(self, first: _Waiting) -> None:
        with self._news:
            if first in self._waiting:
                self._waiting.remove(first)
            self._delay = 0.0
            if self._trouble:
                self._trouble = ""
                self._tell(f"{self._carrier.name} takes alerts again")

    def _put_off(self, first: _Waiting, error: Undelivered) -> None:
        given_up = error.final or time.monotonic() - first.since > PATIENCE
        with self._news:
            if first in self._waiting:
                self._waiting.remove(first)
                if not given_up:
                    self._waiting.append(first)  # behind the others: it may be this one that is not taken
            later = min(max(self._delay * 2, self._first_delay, error.after), LONGEST_DELAY)
            self._delay = 0.0 if error.final else later
            reported, self._trouble = self._trouble, str(error)
        if given_up:
            self._tell(f"an alert was not taken by {self._carrier.name} and is given up: {error}")
        elif not reported:
            self._tell(f"an alert was not taken by {self._carrier.name}: {error}; it is tried again")
