"""Run a user's command for each alert, with the alert as JSON on standard input."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import tempfile
from contextlib import suppress

from traincheck.reporting.alerts.alert import Alert
from traincheck.reporting.alerts.alert_queue import Undelivered

LIMIT = 60.0
"""Seconds after which TrainCheck kills the command and its children."""

MAX_OUTPUT = 200
"""Characters at the end of the command's error output that the message quotes."""


class Command:
    """Runs `text` for each alert, split into words as a shell would, but without a shell.

    Raises ValueError with the expected form for a text that cannot be run.
    """

    def __init__(self, text: str) -> None:
        try:
            self._words = shlex.split(text)
        except ValueError as error:
            raise ValueError(f"a command as a shell would read it ({error})") from None
        if not self._words:
            raise ValueError("a command")
        if shutil.which(self._words[0]) is None:
            raise ValueError(f"a command that can be run: there is no program '{self._words[0]}'")
        self.finishes = True
        self.name = f"the alert command {self._words[0]}"

    def deliver(self, alert: Alert, seconds: float) -> None:
        """Run the command to its end. A failed command is not repeated, because it may have done half of its work.

        At the end of the run, TrainCheck waits at most `seconds`; the command continues.
        """
        with tempfile.TemporaryFile() as request, tempfile.TemporaryFile() as errors:
            request.write(alert.encoded())
            request.seek(0)
            try:
                # A separate session: Ctrl-C does not reach it, and killing the group kills its children.
                process = subprocess.Popen(
                    self._words, stdin=request, stdout=subprocess.DEVNULL, stderr=errors, start_new_session=True
                )
            except OSError as error:
                raise Undelivered(error.strerror or str(error), final=True) from error
            try:
                code = process.wait(LIMIT)
            except subprocess.TimeoutExpired:
                with suppress(OSError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                raise Undelivered(f"it took longer than {LIMIT:.0f} s", final=True) from None
            if code:
                size = errors.seek(0, os.SEEK_END)
                errors.seek(max(0, size - MAX_OUTPUT))
                last = " ".join(errors.read().decode("utf-8", "replace").split())
                how = f"it was ended by signal {-code}" if code < 0 else f"it ended with exit code {code}"
                raise Undelivered(f"{how}{f' ({last})' if last else ''}", final=True)
