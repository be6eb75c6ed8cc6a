"""Starts your program as it would start without TrainCheck, waits for it, and returns its exit status.

Note [The program is a child]. The program runs in its own process, with our standard streams, working directory and
terminal. So Python alone sets its `__main__` and argv, and ends it. TrainCheck's own work before and afterwards
(reading books, writing reports) shares no memory or modules with it, and cannot crash it.

Note [While the program starts]. The import of torch takes seconds, in which this process is idle. Before the start,
TrainCheck does only the work that can prevent the start (options, books, packages that add rules), and imports only
modules for it. It imports the modules for later work right after the start.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from types import FrameType, TracebackType
from typing import Any

from traincheck.errors import CommandNotFound, CommandNotRunnable
from traincheck.runtime.launching import child_processes
from traincheck.runtime.launching.command_target import Target
from traincheck.runtime.launching.run_settings import Settings
from traincheck.runtime.stderr_log import in_words, log_warning

FROM_TERMINAL = ("SIGINT", "SIGQUIT")
"""The terminal sends these to the whole foreground group, so the child gets them directly."""
PASSED_ON = ("SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2")
"""Job schedulers send these to the process they started, to warn it, request a checkpoint, or end it."""


@dataclass(frozen=True, slots=True)
class ExitStatus:
    """Exit status: `code` as in a shell (128+N for signal N), `signal` N or 0, and wall-clock seconds."""

    code: int
    signal: int
    seconds: float

    @property
    def interrupted(self) -> bool:
        return self.signal == signal.SIGINT

    @property
    def signal_name(self) -> str:
        """The name of the signal that ended it, such as `SIGKILL`, or an empty string."""
        return signal.Signals(self.signal).name if self.signal in list(signal.Signals) else ""


class Relay:
    """Context manager that survives signals meant for the child, and forwards those that the child did not get.

    Signals that were ignored at our start (as under nohup) stay ignored, in the child too.
    """

    def __init__(self) -> None:
        self._child: subprocess.Popen[bytes] | None = None
        self._early: list[int] = []
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Relay:
        for name in (*FROM_TERMINAL, *PASSED_ON):
            number = getattr(signal, name, None)
            if number is None or signal.getsignal(number) is signal.SIG_IGN:
                continue
            # Never SIG_IGN: a child inherits that, and Python then raises no KeyboardInterrupt.
            self._before[number] = signal.signal(number, self._received)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def to(self, child: subprocess.Popen[bytes]) -> None:
        """Forward signals to `child`, including earlier signals."""
        self._child = child
        for number in self._early:
            child.send_signal(number)

    def _received(self, number: int, frame: FrameType | None) -> None:
        if signal.Signals(number).name in FROM_TERMINAL and in_foreground():
            return
        if self._child is None:
            self._early.append(number)
        else:
            self._child.send_signal(number)


def in_foreground() -> bool:
    """Whether a terminal sends Ctrl-C to our whole process group."""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)


def launch(
    target: Target,
    settings: Settings,
    environ: Mapping[str, str],
    during_run: Callable[[], AbstractContextManager[object]] = nullcontext,
    *,
    output_to_stderr: bool = False,
) -> ExitStatus:
    """Run `target` to its end with the environment `environ`. Its Python processes are observed according to
    `settings`.

    TrainCheck calls `during_run` after the start, and keeps its context open while the program runs. If `during_run`
    fails, TrainCheck logs a warning and the program continues, see Note [While the program starts]. With
    `output_to_stderr`, the program writes to stderr also what is meant for stdout.

    TrainCheck writes the settings into the run folder, which must exist. Raises UsageError if there is no program to
    run, and OutputError if the settings cannot be written.
    """
    target.check(environ)
    settings.write(settings.file)
    started = time.monotonic()
    with ExitStack() as while_running:
        with Relay() as relay:
            output = sys.stderr.fileno() if output_to_stderr else None
            child = _start(target, child_processes.environment(environ, settings.file.absolute()), output)
            relay.to(child)
            try:
                while_running.enter_context(during_run())
            except Exception as error:
                log_warning(f"{in_words(error)} (the program continues)")
            code = child.wait()
        seconds = time.monotonic() - started
    return ExitStatus(code if code >= 0 else 128 - code, max(0, -code), seconds)


def _start(target: Target, environ: Mapping[str, str], output: int | None) -> subprocess.Popen[bytes]:
    argv = target.argv(sys.executable)
    try:
        # The child inherits descriptors that are meant for it (such as a job server's pipe): close_fds=False.
        return subprocess.Popen(argv, env=dict(environ), stdout=output, close_fds=False)
    except FileNotFoundError as error:
        raise CommandNotFound(argv[0]) from error
    except OSError as error:
        raise CommandNotRunnable(argv[0], error.strerror or str(error)) from error
