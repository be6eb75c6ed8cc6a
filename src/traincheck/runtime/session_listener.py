"""Connects a session to its recorder, for burst recording, control requests and the overhead budget."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from traincheck.sources.recording.listener import RecorderListener

if TYPE_CHECKING:
    from traincheck.sources.recording.overhead import Lap
    from traincheck.sources.recording.step_tracker import Cut

OnFault = Callable[[str, BaseException], None]


class RunningSession(Protocol):
    """The part of a session that its listeners use."""

    running: bool


class BurstListener(RecorderListener):
    """Calls `start_or_end` between calls while the session runs. Stops after an error."""

    def __init__(self, session: RunningSession, start_or_end: Callable[[], None], on_fault: OnFault) -> None:
        self._session = session
        self._start_or_end = start_or_end
        self._on_fault = on_fault
        self._failed = False

    def between_calls(self) -> None:
        if self._session.running and not self._failed:
            try:
                self._start_or_end()
            except Exception as error:
                self._failed = True
                self._on_fault("closer", error)


class WindowListener(RecorderListener):
    """Calls `measure` with the time of each window, then `closed` while the session runs. Stops calling `closed` after
    an error."""

    def __init__(
        self,
        session: RunningSession,
        measure: Callable[[str, bool, float, float, int], None],
        closed: Callable[[Cut], None],
        on_fault: OnFault,
    ) -> None:
        self._session = session
        self._measure = measure
        self._closed = closed
        self._on_fault = on_fault
        self._failed = False

    def window_measured(self, stage: str, watched: bool, lap: Lap) -> None:
        self._measure(stage, watched, lap.wall, lap.overhead, lap.windows)

    def window_closed(self, cut: Cut) -> None:
        if self._session.running and not self._failed:
            try:
                self._closed(cut)
            except Exception as error:
                self._failed = True
                self._on_fault("control", error)
