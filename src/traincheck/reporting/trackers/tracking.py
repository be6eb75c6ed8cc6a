"""Send findings and status to a tracker in a separate process, without waiting for it."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from traincheck.background_threads import background
from traincheck.reporting.json_report import jsonable
from traincheck.reporting.trackers.messages import CLOSE, MEASURE, OPEN, SHOW, Answer, Message
from traincheck.vocab.finding import Finding
from traincheck.vocab.run_status import RunStatus

EVERY = 10.0
"""Seconds between two points of a curve. A finding or the end of the run adds a point at once."""

ANSWER, FIRST_ANSWER = 60.0, 120.0
"""Seconds after which TrainCheck kills a tracker that does not answer. The libraries' own retries end sooner. The first
answer includes the import and may wait for a server."""

AT_THE_END = 60.0
"""Seconds that the end of a run waits for a tracker to upload the reports."""

NOTICE_AFTER = 5.0
"""Seconds of this wait after which TrainCheck prints a line about it."""

MAX_WAITING = 1_000
"""Findings that may wait; a run has some dozens at most. Of the status, only the latest waits."""

_CODE = (
    "import sys; sys.path[:] = [place for place in sys.path if place]; "  # no module of the working directory
    "from traincheck.reporting.trackers.worker import main; main()"
)


class Tracking:
    """A receiver that forwards findings and status to the tracker `target` (`module:Class`), called `name`.

    The first error is reported through `notify`; errors do not affect the run. Call `begin` first, and `finish` with
    the report files before `close`.
    """

    def __init__(self, name: str, target: str, target_place: str, notify: Callable[[str], None]) -> None:
        self.name = name
        self._notify = notify
        self._words = [sys.executable, "-c", _CODE, target, target_place]
        self._waiting: deque[Message] = deque()
        self._news = threading.Condition()
        self._failed = False
        self._files: tuple[str, ...] = ()
        self._next_point = 0.0
        self._last_counts: object = None
        self._ends: float | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._thread: threading.Thread | None = None

    def begin(self, run: Mapping[str, str]) -> None:
        """Start the process; `Tracker.open` describes `run`."""
        try:
            # A separate session: Ctrl-C does not reach it, and killing the group kills its children.
            self._process = subprocess.Popen(
                self._words,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError as error:
            self._trouble(error.strerror or str(error))
            return
        self._put(Message(OPEN, run=dict(run)))
        self._thread = background(self._work, "traincheck-tracking")

    def look(self, findings: Sequence[Finding], status: RunStatus) -> None:
        """Send new findings and, if due, the status."""
        for finding in findings:
            self._put(Message(SHOW, finding=finding))
        counts, now = (status.errors, status.notices, status.over), time.monotonic()
        if status.ranks and (counts != self._last_counts or now >= self._next_point):
            self._last_counts, self._next_point = counts, now + EVERY
            self._put(Message(MEASURE, status=status))

    def finish(self, files: Sequence[Path]) -> None:
        """Set the report files that `close` sends."""
        self._files = tuple(str(file.absolute()) for file in files)

    def close(self) -> None:
        """Send the end of the run, and wait at most `AT_THE_END` seconds for the tracker."""
        if self._thread is None:
            return
        with self._news:
            self._ends = time.monotonic() + AT_THE_END
        self._put(Message(CLOSE, files=self._files))
        self._thread.join(min(NOTICE_AFTER, AT_THE_END))
        if self._thread.is_alive():
            self._notify(f"waiting for {self.name} to upload the report, at most {AT_THE_END:.0f} s")
            self._thread.join(AT_THE_END - NOTICE_AFTER + 1)
        self._end()

    def _put(self, message: Message) -> None:
        with self._news:
            if message.kind == MEASURE:  # only the last numbers matter
                for older in [message for message in self._waiting if message.kind == MEASURE]:
                    self._waiting.remove(older)
            if len(self._waiting) < MAX_WAITING or message.kind == CLOSE:
                self._waiting.append(message)
                self._news.notify()

    def _trouble(self, reason: str) -> None:
        if not self._failed:
            self._failed = True
            self._notify(f"--track {self.name}: {reason} (reported once; the run is not affected)")

    # -- on the thread ---------------------------------------------------------------------------------------------

    def _work(self) -> None:
        while True:
            with self._news:
                while not self._waiting:
                    self._news.wait()
                message = self._waiting.popleft()
            try:
                answer = self._answer_to(message)
            except (
                OSError,
                ValueError,
                msgspec.MsgspecError,
            ) as error:  # the process has ended, or its answer is malformed
                self._trouble(str(error))
                self._end()
                return
            if answer.trouble:
                self._trouble(answer.trouble)
            if answer.where:
                self._notify(f"tracked by {self.name}: {answer.where}")
            if message.kind == OPEN and answer.trouble:
                self._end()
                return
            if message.kind == CLOSE:
                return

    def _answer_to(self, message: Message) -> Answer:
        """Send a message and return the answer. Raises OSError if there is none."""
        process = self._process
        assert process is not None and process.stdin is not None and process.stdout is not None
        process.stdin.write(msgspec.json.encode(jsonable(message)) + b"\n")
        process.stdin.flush()
        line = b""
        until = time.monotonic() + (FIRST_ANSWER if message.kind == OPEN else ANSWER)
        while not line.endswith(b"\n"):
            left = min(until, self._ends or until) - time.monotonic()
            if left <= 0:
                raise TimeoutError("the tracker does not answer and was stopped")
            if select.select([process.stdout], [], [], min(left, 1.0))[0]:
                read = os.read(process.stdout.fileno(), 65_536)
                if not read:
                    raise OSError("the tracker's process has ended; nothing more is logged there")
                line += read
        return msgspec.json.decode(line, type=Answer)

    def _end(self) -> None:
        """End the process and its children."""
        process = self._process
        if process is None:
            return
        with suppress(OSError):
            if process.stdin is not None:
                process.stdin.close()
        try:
            process.wait(0 if self._failed else 5.0)
        except subprocess.TimeoutExpired:
            with suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
