"""The pipeline: takes closed windows off the training thread and hands them to the trace and the live checker.

Note [Never wait for the background]
The training thread only puts a window into a queue, which takes no lock of Python's own, so that a handler of a signal
may do so in the middle of that. What waits there is bounded, in windows and in memory; beyond that whole windows are
dropped and counted. The end of the program waits for what is left, but not for a stage that has stopped moving.

Note [Several windows at a time]
Judging and writing run Python code: they hold the lock that the training thread needs, and what a step of training
leaves of the caches makes them take three times as long as they would in a row. So where steps are short, what waits is
done together, ten times a second; where they are long, at once. It is done at once, too, at the start, where most
errors show and programs end that only try something, and where the training is to heed what is found.

Note [No thread in a fork]
A process that is forked while another thread holds a lock (of stderr, of an allocator) has that lock for good. So the
thread rests while the program forks.
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

MOST_WAITING = 256
"""Windows that may wait; beyond that whole windows are dropped, and counted, so that training never waits for us."""

MOST_BYTES = 512 << 20
BYTES_OF_AN_EVENT = 400
"""The memory that waiting windows may take, and about what an event takes (half of it is shared with others)."""

APART_SECONDS = 0.1
"""Between the beginnings of two rows of windows, see Note [Several windows at a time]: what is found is told that much
later at the most, and a process that is killed loses so much of its recording."""

NEVER = float("-inf")

FIRST_WINDOWS = 20
"""So many at the start wait for no others."""

MOST_TOGETHER, BYTES_TOGETHER = 64, 64 << 20
"""Windows that wait, and the memory that they take, beyond which they are worked off at once."""

END_SECONDS, STILL_SECONDS = 60.0, 20.0
"""How long the end of the program waits for what is left: in all, and while nothing gets done. (Ranks that compare
themselves take up to 17 seconds to end, see rank_client.py.)"""

PATIENCE = 3.0
"""Seconds after which the end says what it waits for."""

FORK_SECONDS = 1.0
"""How long a fork waits for the stages to come to rest: about what the largest windows take."""

Stage = tuple[str, Callable[[Window], None]]
"""A name and what to do with each window."""
Last = tuple[str, Callable[[], object]]
"""A name and what to do in the end."""


class Idle(Protocol):
    """Has something to do while no window comes."""

    def rest(self) -> float:
        """Seconds until then."""

    def beat(self) -> None:
        """Do it."""


class Pipeline:
    """One background thread. A stage that raises is switched off and told through `on_fault`; the others go on.

    `last` is what is done when all windows are: it is done in the background too, as it may have to wait for a disk.
    `promptly` says that no window is kept waiting for others, see Note [Several windows at a time].
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
        self._sizes: deque[int] = deque()  # of the windows that wait, and of the one at work
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        self._resting = False
        self._ended = False
        self._patient = True
        self._done = 0
        self._at = ""  # the stage at work
        self.closed = 0
        self.dropped = 0
        self.steps = 0
        self.seconds: dict[str, float] = {name: 0.0 for name, _ in stages}

    def start(self) -> None:
        """Start the thread. Raises RuntimeError where there can be no more threads."""
        if not self._starting.acquire(blocking=False):
            return  # somebody does it at this moment
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
        if len(sizes) > MOST_WAITING or (sizes and taken > MOST_BYTES):
            self.dropped += 1
            return
        self._sizes.append(size)
        self._waiting.put(window)
        if len(sizes) >= MOST_TOGETHER or taken > BYTES_TOGETHER:
            self._hurry.put(None)
        with suppress(RuntimeError):  # no more threads now; the window waits for the next one
            self.start()

    def say(self, text: str) -> None:
        """Complain, in the background: stderr may be a pipe that nobody reads."""
        thread = self._thread
        if thread is None or not thread.is_alive() or thread is threading.current_thread():
            log_warning(text)
        else:
            self._at_once(lambda: log_warning(text))

    def rest(self) -> None:
        """End the thread until `start`, unless it is busy for long: a fork comes, see Note [No thread in a fork]."""
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
        """Work off what waits, do what is last, and end the thread; returns why that was given up, if it was.

        An interrupt (Ctrl-C) ends the waiting at once, and is raised.
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
        """How much is not done yet, in words."""
        waiting = len(self._sizes)
        return "the end" if not waiting else "1 window" if waiting == 1 else f"{waiting} windows"

    def spent(self) -> tuple[float, int]:
        """The seconds that the stages took so far, and for how many windows."""
        return sum(self.seconds.values()), self._done

    def _unfinished(self, when: str) -> str:
        return f"{self.left} could not be written and checked {when}" + (self._at and f" ({self._at})")

    def give_up(self) -> None:
        """Let the thread end, and do nothing more."""
        self._stages.clear()
        self._last.clear()
        self._at_once(self._end)

    def _at_once(self, work: Callable[[], object]) -> None:
        """Have something else done in the background, after what waits."""
        self._waiting.put(work)
        self._hurry.put(None)

    # -- in the background -----------------------------------------------------------------------------------------

    def _work(self) -> None:
        row = NEVER  # when the last one began
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
        """Wait until the row of windows after the one that began at `row` is due; when it begins."""
        left = row + self._row_interval - time.monotonic()
        if self._done >= FIRST_WINDOWS and left > 0 and not self._resting:
            with suppress(queue.Empty):
                self._hurry.get(timeout=left)
        with suppress(queue.Empty):
            while True:  # what was to be hurried is done now
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
        """Whether it went well. Nothing that is raised in here, an exit included, ends the thread."""
        self._at = name
        try:
            work()
        except BaseException as error:
            with suppress(BaseException):  # no memory to say so
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
    """Wakes the thread."""
