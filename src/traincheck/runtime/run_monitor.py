"""Guard: looks at a run from outside and hands what it sees to those who want to know, until the run is over."""

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
"""Seconds between two looks: a finding is told within a second of the step that it is about."""

MOST_LOOKING = 0.1
"""Share of the time that looks may take, of a run with thousands of ranks on a slow file system, say."""

LAST_LOOK = 10.0
"""Seconds that the end of a run waits for the last look."""


class Receiver(Protocol):
    """Wants to know. It must not keep the one who tells waiting."""

    def look(self, findings: Sequence[Finding], status: RunStatus) -> None:
        """Findings that are new, and how the run fares. `status.over` says that this was the last look."""

    def close(self) -> None:
        """Nothing more comes: do within a few seconds what is still to be done."""


class Spared:
    """A receiver that is given up when it raises, with a word, so that the others and the run are spared."""

    def __init__(self, receiver: Receiver, tell: Callable[[str], None]) -> None:
        self._receiver: Receiver | None = receiver
        self._tell = tell

    def look(self, findings: Sequence[Finding], status: RunStatus) -> None:
        """As the receiver's."""
        self._try(lambda receiver: receiver.look(findings, status))

    def close(self) -> None:
        """As the receiver's."""
        self._try(lambda receiver: receiver.close())

    def _try(self, work: Callable[[Receiver], None]) -> None:
        if self._receiver is None:
            return
        try:
            work(self._receiver)
        except Exception as error:
            name = type(self._receiver).__name__
            self._receiver = None
            self._tell(f"{name}: {type(error).__name__} (nothing more is told there; the run is not concerned)")


def look_out(
    watcher: Watcher, receivers: Sequence[Receiver], over: threading.Event | None = None, pause: float = PAUSE
) -> RunStatus:
    """Look every `pause` seconds until the run is over, or `over` is set and one more look was taken; the last status.

    Raises what `Watcher.look` raises.
    """
    over = over or threading.Event()
    while True:
        last = over.is_set()  # asked first, so that what is written meanwhile is not missed
        began = time.monotonic()
        findings, status = watcher.look()
        for receiver in receivers:
            receiver.look(findings, status)
        if last or status.over:
            return status
        over.wait(max(pause, (time.monotonic() - began) / MOST_LOOKING))


class Guard:
    """Looks out in a thread of the command that starts a program, so that nothing of it can concern the program.

    Open it around the run, `begin` when its folder is there, and leave it when the run is written down as ended.
    """

    def __init__(
        self,
        receivers: Sequence[Receiver],
        tell: Callable[[str], None],
        silent_after: float = SILENT_AFTER,
        pause: float = PAUSE,
    ) -> None:
        self._receivers = [Spared(receiver, tell) for receiver in receivers]
        self._tell = tell
        self._silent_after = silent_after
        self._pause = pause
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self, folder: Path) -> None:
        """Look out for the run in `folder`, if there is somebody to tell."""
        if self._receivers:
            self._thread = threading.Thread(target=self._work, args=(folder,), name="traincheck-guard", daemon=True)
            self._thread.start()

    def __enter__(self) -> Guard:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        """Take a last look, and let the receivers end."""
        self._over.set()
        if self._thread is not None:
            self._thread.join(LAST_LOOK)
        for receiver in self._receivers:
            receiver.close()

    def _work(self, folder: Path) -> None:
        # Imported here: of the time until the program starts it would take a tenth of a second, for a guard that has
        # nobody to tell, too.
        from traincheck.checking.run_status import Watcher

        try:
            look_out(Watcher(folder, self._silent_after), self._receivers, self._over, self._pause)
        except Exception as error:  # a thread of ours must not end without a word
            self._tell(f"the run is no longer looked at from outside: {error} (no more alerts and metrics)")
