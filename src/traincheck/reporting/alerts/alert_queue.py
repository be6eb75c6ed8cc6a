"""Deliver alerts on a background thread, with retries, without blocking the run."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from traincheck.reporting.alerts.alert import Alert

MAX_WAITING = 100
"""Alerts that may wait. A run has some dozens of findings at most, and the first ones matter most."""

FIRST_DELAY, MAX_DELAY = 1.0, 60.0
"""Seconds to wait after the first failed attempt, and the upper limit; each further failure doubles the delay."""

RETRY_LIMIT = 86_400.0
"""Seconds after which TrainCheck drops an alert: a day, enough to repair a receiver."""

ATTEMPT = 10.0
"""Seconds that one attempt may take."""

AT_THE_END = 5.0
"""Seconds that the end of the run waits for undelivered alerts, with `LAST_DELAY` between attempts."""

LAST_DELAY = 0.5


class Undelivered(Exception):
    """A delivery failed. `final`: do not retry; `after`: seconds that the receiver requests before a retry."""

    def __init__(self, reason: str, *, final: bool = False, after: float = 0.0) -> None:
        super().__init__(reason)
        self.final = final
        self.after = after


class Channel(Protocol):
    """A way to deliver alerts. `name` is for people and contains no secrets. If `finishes`, a delivery that has begun
    completes even if TrainCheck stops waiting."""

    name: str
    finishes: bool

    def deliver(self, alert: Alert, seconds: float) -> None:
        """Deliver the alert within `seconds`, or raise Undelivered."""


@dataclass
class _Waiting:
    alert: Alert
    since: float = field(default_factory=time.monotonic)


class AlertQueue:
    """Delivers alerts through a channel. Reports failed deliveries through `notify`, once per outage."""

    def __init__(self, channel: Channel, notify: Callable[[str], None], first_delay: float = FIRST_DELAY) -> None:
        self._channel = channel
        self._notify = notify
        self._first_delay = first_delay
        self._delay = 0.0
        self._waiting: deque[_Waiting] = deque()
        self._dropped = 0
        self._trouble = ""
        self._under_way = False
        self._ends: float | None = None
        self._news = threading.Condition()
        self._thread = threading.Thread(target=self._work, name="traincheck-alerts", daemon=True)
        self._thread.start()

    def put(self, alert: Alert) -> None:
        """Queue an alert without waiting. If the queue is full, drop and count the alert."""
        with self._news:
            if len(self._waiting) < MAX_WAITING:
                self._waiting.append(_Waiting(alert))
                self._news.notify()
            else:
                self._dropped += 1

    def close(self, seconds: float = AT_THE_END) -> None:
        """Retry the waiting alerts for at most `seconds`, and report undelivered ones."""
        with self._news:
            self._ends = time.monotonic() + seconds
            self._news.notify()
        self._thread.join(seconds)
        with self._news:
            lost = len(self._waiting) + self._dropped - (self._under_way and self._channel.finishes)
            self._waiting.clear()
        if lost:
            reason = f": {self._trouble}" if self._trouble else ""
            self._notify(f"{lost} alert{'s' * (lost > 1)} could not be delivered to {self._channel.name}{reason}")

    # -- on the thread ---------------------------------------------------------------------------------------------

    def _work(self) -> None:
        while (first := self._next()) is not None:
            self._under_way = True
            try:
                self._channel.deliver(first.alert, self._time_left())
            except Undelivered as error:
                self._put_off(first, error)
            except Exception as error:  # an internal fault: do not retry
                self._put_off(first, Undelivered(type(error).__name__, final=True))
            else:
                self._delivered(first)
            self._under_way = False

    def _next(self) -> _Waiting | None:
        """Wait for the next attempt and return its alert; None at the end."""
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
                self._notify(f"{self._channel.name} accepts alerts again")

    def _put_off(self, first: _Waiting, error: Undelivered) -> None:
        given_up = error.final or time.monotonic() - first.since > RETRY_LIMIT
        with self._news:
            if first in self._waiting:
                self._waiting.remove(first)
                if not given_up:
                    self._waiting.append(first)  # last in the queue, so that one bad alert does not block the others
            later = min(max(self._delay * 2, self._first_delay, error.after), MAX_DELAY)
            self._delay = 0.0 if error.final else later
            reported, self._trouble = self._trouble, str(error)
        if given_up:
            self._notify(f"{self._channel.name} rejected an alert, which is dropped: {error}")
        elif not reported:
            self._notify(f"an alert could not be delivered to {self._channel.name}: {error}; TrainCheck retries")
