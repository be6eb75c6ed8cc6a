"""Moves closed windows from the training thread to the recording and the live checker.

Note [Never wait for the background]
The training thread only puts a window into a queue. The queue takes no Python lock, so a signal handler may interrupt
it and do the same. The queue is bounded in windows and in memory; the pipeline drops and counts windows beyond the
bound. The end of the program waits for the remaining windows, but not for a stage that makes no progress.

Note [Several windows at a time]
Checking and writing run Python code, and hold the lock that the training thread needs. After a training step the caches
are cold, so a single window takes three times as long as a window in a row. Where steps are short, the pipeline
therefore processes waiting windows together, ten times a second. Where steps are long, it processes each window at
once.

The first windows are also processed at once: most errors appear there, and trial runs end there. The same holds if the
training acts on findings.

Note [No thread in a fork]
Another thread may hold a lock (of stderr, of an allocator) when a process forks. The child then never gets that lock,
so the pipeline's thread pauses during the fork.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Protocol

from traincheck.background_threads import NAME, background
from traincheck.runtime.stderr_log import log_warning
from traincheck.vocab.events import Window

MAX_WAITING = 256
"""Windows that may wait. The pipeline drops and counts windows beyond this, so that training never waits."""

MAX_BYTES = 512 << 20
BYTES_OF_AN_EVENT = 400
"""Memory limit for waiting windows, and the estimated size of an event (about half of it is shared)."""

APART_SECONDS = 0.1
"""Seconds between two rows of windows, see Note [Several windows at a time]. Findings are at most this late, and a
killed process loses at most this much of its recording."""

NEVER = float("-inf")

FIRST_WINDOWS = 20
"""Windows at the start that the pipeline processes at once."""

MAX_TOGETHER, BYTES_TOGETHER = 64, 64 << 20
"""Waiting windows, and their memory, beyond which the pipeline processes them at once."""

END_SECONDS, STILL_SECONDS = 60.0, 20.0
"""Seconds that the end of the program waits: in total, and without progress. (The rank comparison takes up to 17
seconds to end, see rank_client.py.)"""

PATIENCE = 3.0
"""Seconds after which the end logs a line about the wait."""

FORK_SECONDS = 1.0
"""Seconds that a fork waits for the stages: about the time for the largest windows."""

Stage = tuple[str, Callable[[Window], None]]
"""A name and a function that is called with each window."""
Last = tuple[str, Callable[[], object]]
"""A name and a function that is called after the last window."""


class Idle(Protocol):
    """Work for the time between windows."""

    def rest(self) -> float:
        """Seconds until the next `beat`."""

    def beat(self) -> None:
        """Do the work."""


class Pipeline:
    """Runs stages on one background thread. It removes a stage that raises, and reports it through `on_fault`.

    The pipeline calls `last` after all windows, in the background as well, because these functions may wait for a disk.
    With `promptly`, it processes each window at once, see Note [Several windows at a time].
    """

    def __init__(
        self,
        stages: Sequence[Stage],
        on_fault: Callable[[str, BaseException], None],
        idle: Idle | None = None,
        last: Sequence[Last] = (),
        *,
        promptly: bool = False,
    ) -> None:
        self._row_interval = 0.0 if promptly else APART_SECONDS
        self._stages = list(stages)
        self._last = list(last)
        self._on_fault = on_fault
        self._idle = idle
        self._waiting: queue.SimpleQueue[Window | Callable[[], object]] = queue.SimpleQueue()
        self._hurry: queue.SimpleQueue[None] = queue.SimpleQueue()  # wakes the thread from its pause between rows
        self._sizes: deque[int] = deque()  # of the waiting windows and the current window
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        self._resting = False
        self._ended = False
        self._patient = True
        self._done = 0
        self._at = ""  # the current stage
        self.closed = 0
        self.dropped = 0
        self.steps = 0
        self.seconds: dict[str, float] = {name: 0.0 for name, _ in stages}

    def start(self) -> None:
        """Start the thread. Raises RuntimeError if the process can start no more threads."""
        if not self._starting.acquire(blocking=False):
            return  # another thread is starting it
        try:
            if self._thread is None or not self._thread.is_alive():
                self._thread = background(self._work, NAME)
        finally:
            self._starting.release()

    def put(self, window: Window) -> None:
        """Hand over a window; never blocks and never raises."""
        self.closed += 1
        self.steps = max(self.steps, window.step)
        size = BYTES_OF_AN_EVENT * (len(window.calls) + len(window.changes) + len(window.readings))
        sizes = list(self._sizes)
        taken = sum(sizes) + size
        if len(sizes) > MAX_WAITING or (sizes and taken > MAX_BYTES):
            self.dropped += 1
            return
        self._sizes.append(size)
        self._waiting.put(window)
        if len(sizes) >= MAX_TOGETHER or taken > BYTES_TOGETHER:
            self._hurry.put(None)
        with suppress(RuntimeError):  # no more threads now; the window waits for the next one
            self.start()

    def say(self, text: str) -> None:
        """Log a warning in the background, because stderr may be a pipe without a reader."""
        thread = self._thread
        if thread is None or not thread.is_alive() or thread is threading.current_thread():
            log_warning(text)
        else:
            self._at_once(lambda: log_warning(text))

    def rest(self) -> None:
        """End the thread until `start`, unless it is busy for long. Called before a fork, see Note [No thread in a
        fork]."""
        thread = self._thread
        if thread is None or thread is threading.current_thread() or not (self._patient and thread.is_alive()):
            return
        self._resting = True
        try:
            self._at_once(_nothing)
            thread.join(FORK_SECONDS)
            self._patient = not thread.is_alive()
        finally:
            self._resting = False

    def close(self) -> str:
        """Process the remaining windows, call `last` and end the thread. Returns the reason if that was given up.

        An interrupt (Ctrl-C) ends the wait at once, and is raised.
        """
        self._at_once(self._end)
        with suppress(RuntimeError):
            self.start()
        began = moved = time.monotonic()
        done, announced = self._done, False
        while self._thread is not None and self._thread.is_alive() and not self._ended:
            self._thread.join(0.1)
            now = time.monotonic()
            if self._done != done:
                done, moved = self._done, now
            if now - began > END_SECONDS or now - moved > STILL_SECONDS:
                return self._unfinished(f"in {now - began:.0f} s")
            if now - began > PATIENCE and not announced:
                announced = True
                with suppress(RuntimeError):
                    background(
                        log_warning, NAME, f"waiting for {self.left} to be written and checked (Ctrl-C ends that)"
                    )
        return "" if self._ended else self._unfinished("at all")

    @property
    def left(self) -> str:
        """The remaining work, for messages."""
        waiting = len(self._sizes)
        return "the end" if not waiting else "1 window" if waiting == 1 else f"{waiting} windows"

    def spent(self) -> tuple[float, int]:
        """Seconds that the stages have used, and the number of processed windows."""
        return sum(self.seconds.values()), self._done

    def _unfinished(self, when: str) -> str:
        return f"{self.left} could not be written and checked {when}" + (self._at and f" ({self._at})")

    def give_up(self) -> None:
        """End the thread and drop the remaining work."""
        self._stages.clear()
        self._last.clear()
        self._at_once(self._end)

    def _at_once(self, work: Callable[[], object]) -> None:
        """Call `work` in the background, after the waiting windows."""
        self._waiting.put(work)
        self._hurry.put(None)

    # -- in the background -----------------------------------------------------------------------------------------

    def _work(self) -> None:
        row = NEVER  # start time of the previous row
        while not (self._ended or self._resting):
            first = self._waiting.empty() or row == NEVER
            item = self._next()
            if not isinstance(item, Window):
                self._try("", item)
                continue
            if first:
                row = self._pause(row)
            for stage in list(self._stages):
                name, work = stage
                began = time.thread_time()
                if not self._try(name, lambda work=work, item=item: work(item)):  # type: ignore[misc]
                    self._stages.remove(stage)
                self.seconds[name] += time.thread_time() - began
            self._sizes.popleft()
            self._done += 1

    def _pause(self, row: float) -> float:
        """Wait until the next row may begin, after the row that began at `row`. Returns the start time."""
        left = row + self._row_interval - time.monotonic()
        if self._done >= FIRST_WINDOWS and left > 0 and not self._resting:
            with suppress(queue.Empty):
                self._hurry.get(timeout=left)
        with suppress(queue.Empty):
            while True:  # these requests are served now
                self._hurry.get_nowait()
        return time.monotonic()

    def _next(self) -> Window | Callable[[], object]:
        while self._idle is not None:
            try:
                return self._waiting.get(timeout=self._idle.rest())
            except queue.Empty:
                if not self._try("idle", self._idle.beat):
                    self._idle = None
        return self._waiting.get()

    def _try(self, name: str, work: Callable[[], object]) -> bool:
        """Call `work`. Returns False if it raised; no exception, an exit included, ends the thread."""
        self._at = name
        try:
            work()
        except BaseException as error:
            with suppress(BaseException):  # for example without memory for the report
                self._on_fault(name, error)
            return False
        finally:
            self._at = ""
        return True

    def _end(self) -> None:
        for name, work in self._last:
            self._try(name, work)
            self._done += 1
        self._ended = True


def _nothing() -> None:
    """Does nothing; putting it into the queue wakes the thread."""
