"""Monitors a run from outside, and sends new findings and the status to alerts, metrics and trackers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Protocol

from traincheck.vocab.run_status import SILENT_AFTER

if TYPE_CHECKING:
    from traincheck.checking.run_status import Watcher
    from traincheck.vocab.finding import Finding
    from traincheck.vocab.run_status import RunStatus

PAUSE = 0.5
"""Seconds between two reads of the run folder, so that a finding is reported within a second of its step."""

MAX_READ_SHARE = 0.1
"""Share of the time that reads may take. With thousands of ranks on a slow file system, a read takes long."""

LAST_LOOK = 10.0
"""Seconds that the end of a run waits for the last read."""


class Receiver(Protocol):
    """Receives findings and the status of a run. Its methods must return at once."""

    def look(self, findings: Sequence[Finding], status: RunStatus) -> None:
        """Take new findings and the status. `status.over` marks the last call."""

    def close(self) -> None:
        """End within a few seconds. `look` is not called afterwards."""


class Isolated:
    """Drops a receiver that raises, with a log line, so that the other receivers and the run go on."""

    def __init__(self, receiver: Receiver, log: Callable[[str], None]) -> None:
        self._receiver: Receiver | None = receiver
        self._log = log

    def look(self, findings: Sequence[Finding], status: RunStatus) -> None:
        """See `Receiver`."""
        self._try(lambda receiver: receiver.look(findings, status))

    def close(self) -> None:
        """See `Receiver`."""
        self._try(lambda receiver: receiver.close())

    def _try(self, work: Callable[[Receiver], None]) -> None:
        if self._receiver is None:
            return
        try:
            work(self._receiver)
        except Exception as error:
            name = type(self._receiver).__name__
            self._receiver = None
            self._log(f"{name}: {type(error).__name__} (it receives nothing more; the run goes on)")


def look_out(
    watcher: Watcher, receivers: Sequence[Receiver], over: threading.Event | None = None, pause: float = PAUSE
) -> RunStatus:
    """Read the run every `pause` seconds until it is over, and return the last status.

    If `over` is set, it reads once more and returns. Raises the errors of `Watcher.look`.
    """
    over = over or threading.Event()
    while True:
        last = over.is_set()  # before the read, so that nothing written during it is missed
        began = time.monotonic()
        findings, status = watcher.look()
        for receiver in receivers:
            receiver.look(findings, status)
        if last or status.over:
            return status
        over.wait(max(pause, (time.monotonic() - began) / MAX_READ_SHARE))


class RunMonitor:
    """Monitors a run in a thread of the command that starts the program, so that its errors never reach the program.

    Open it around the run, call `begin` when the run folder exists, and leave it when the run is recorded as ended.
    """

    def __init__(
        self,
        receivers: Sequence[Receiver],
        log: Callable[[str], None],
        heartbeat_timeout: float = SILENT_AFTER,
        pause: float = PAUSE,
    ) -> None:
        self._receivers = [Isolated(receiver, log) for receiver in receivers]
        self._log = log
        self._heartbeat_timeout = heartbeat_timeout
        self._pause = pause
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self, folder: Path) -> None:
        """Monitor the run in `folder`, if there are receivers."""
        if self._receivers:
            self._thread = threading.Thread(target=self._work, args=(folder,), name="traincheck-monitor", daemon=True)
            self._thread.start()

    def __enter__(self) -> RunMonitor:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        """Take a last look and close the receivers."""
        self._over.set()
        if self._thread is not None:
            self._thread.join(LAST_LOOK)
        for receiver in self._receivers:
            receiver.close()

    def _work(self, folder: Path) -> None:
        # Imported here: without receivers the program need not wait a tenth of a second for this import.
        from traincheck.checking.run_status import Watcher

        try:
            look_out(Watcher(folder, self._heartbeat_timeout), self._receivers, self._over, self._pause)
        except Exception as error:  # report it, as the thread ends
            self._log(f"monitoring has ended with an error: {error} (no more alerts and metrics)")
