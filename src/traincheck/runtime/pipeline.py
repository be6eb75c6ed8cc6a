"""The pipeline: takes closed windows off the training thread and hands them to the trace and the live checker."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence

from traincheck.vocab.events import Window

MOST_WAITING = 256
"""Windows that may wait; beyond that whole windows are dropped, and counted, so that training never waits for us."""

DRAIN_SECONDS = 60.0
"""How long the end of the program waits for what is still queued."""

Stage = tuple[str, Callable[[Window], None]]
"""A name and what to do with each window."""


class Pipeline:
    """One background thread. A stage that raises is switched off and told through `on_fault`; the others go on."""

    def __init__(self, stages: Sequence[Stage], on_fault: Callable[[str, BaseException], None]) -> None:
        self._stages = list(stages)
        self._on_fault = on_fault
        self._queue: queue.Queue[Window | None] = queue.Queue(MOST_WAITING)
        self._thread = threading.Thread(target=self._work, name="traincheck", daemon=True)
        self.closed = 0
        self.dropped = 0
        self.steps = 0
        self.seconds: dict[str, float] = {name: 0.0 for name, _ in stages}

    def start(self) -> None:
        self._thread.start()

    def put(self, window: Window) -> None:
        """Hand over a window; never blocks."""
        self.closed += 1
        self.steps = max(self.steps, window.step)
        try:
            self._queue.put_nowait(window)
        except queue.Full:
            self.dropped += 1

    def close(self) -> None:
        """Work off what waits, then end the thread (or give up after `DRAIN_SECONDS`)."""
        if self._thread.is_alive():
            self._queue.put(None, timeout=DRAIN_SECONDS)
            self._thread.join(DRAIN_SECONDS)

    def _work(self) -> None:
        while True:
            window = self._queue.get()
            if window is None:
                return
            for stage in list(self._stages):
                name, work = stage
                began = time.thread_time()
                try:
                    work(window)
                except Exception as error:
                    self._stages.remove(stage)
                    self._on_fault(name, error)
                self.seconds[name] += time.thread_time() - began
