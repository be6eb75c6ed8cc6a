"""Runs commands in parallel to a test and waits for their output."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import warm_commands
from fake_ranks import wait_for

PATIENCE = 120.0
"""Seconds that a test waits for other processes on a busy machine."""


def until(condition: Callable[[], object]) -> None:
    """Wait until it is so."""
    wait_for(condition, PATIENCE)


class Running:
    """A command under way; what it says can be waited for."""

    def __init__(self, home: Path, *words: str) -> None:
        environ = {**os.environ, "COLUMNS": "100"}
        command = [sys.executable, "-m", "traincheck", *words]
        self.process = warm_commands.start(command, home, environ, new_session=True)
        self.out, self.err = "", ""
        self._threads = [
            threading.Thread(target=self._read, args=(name,), daemon=True) for name in ("stdout", "stderr")
        ]
        for thread in self._threads:
            thread.start()

    def _read(self, name: str) -> None:
        for line in getattr(self.process, name):
            if name == "stdout":
                self.out += line
            else:
                self.err += line

    def says(self, words: str) -> None:
        """Wait until it has said this on stdout."""
        until(lambda: words in self.out or self.process.poll() is not None)
        assert words in self.out, self.out + self.err

    def ends(self) -> int:
        """Wait for its end; its exit code."""
        code = self.process.wait(120)
        for thread in self._threads:
            thread.join(30)
        return code

    def kill(self) -> None:
        """End it and all that it started, at once."""
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            return
        self.process.wait(30)
