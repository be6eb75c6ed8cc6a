"""Launch: start the user's program as it would start without us, wait for it, and say how it ended.

Note [The program is a child]. The program runs in a process of its own, with our standard streams, working directory
and terminal. So its `__main__`, its argv and its way to end are Python's own business, and nothing that we do before or
afterwards (reading books, writing reports) shares memory, modules or a fate with it.

Note [While the program starts]. To import torch takes seconds, in which this process has nothing to do. So before the
start it does what may keep the program from being started at all (options, books, packages that add rules), and imports
no more than that takes. What it needs while the program runs and when it has ended is imported right after the start.
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
"""The terminal sends these to the whole foreground group: the child has them already."""
PASSED_ON = ("SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2")
"""Job schedulers send these to the process they started: a warning, a request to save, the end."""


@dataclass(frozen=True, slots=True)
class ExitStatus:
    """How the program ended: `code` as a shell says it (128+N for signal N), `signal` N or 0, wall-clock seconds."""

    code: int
    signal: int
    seconds: float

    @property
    def interrupted(self) -> bool:
        return self.signal == signal.SIGINT

    @property
    def signal_name(self) -> str:
        """`SIGKILL` and the like, an empty text when no signal ended it."""
        return signal.Signals(self.signal).name if self.signal in list(signal.Signals) else ""


class Relay:
    """While it is open, this process outlives what is sent to stop the child, and passes on what the child lacks.

    A signal that was ignored when we started (as under nohup) stays ignored, in the child too.
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
            # Never SIG_IGN: a child inherits that, and Python then leaves out KeyboardInterrupt.
            self._before[number] = signal.signal(number, self._received)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def to(self, child: subprocess.Popen[bytes]) -> None:
        """Pass signals on to `child`, also those that came before it was there."""
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
    """Whether a terminal is there that would have sent a Ctrl-C to our whole process group."""
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
    beside: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> ExitStatus:
    """Run `target` to its end with the environment `environ`, its Python processes observed as `settings` say.

    What `beside` makes is made when the program has started, and open while it runs; where it cannot be made that is
    said, and the program runs on, see Note [While the program starts].

    The settings are written into the run folder, which must exist. Raises UsageError where there is nothing to run,
    OutputError when the settings cannot be written. What the program does with its own exit is in the result.
    """
    target.check(environ)
    settings.write(settings.file)
    started = time.monotonic()
    with ExitStack() as open_beside:
        with Relay() as relay:
            child = _start(target, child_processes.environment(environ, settings.file.absolute()))
            relay.to(child)
            try:
                open_beside.enter_context(beside())
            except Exception as error:
                log_warning(f"{in_words(error)} (the program is not concerned)")
            code = child.wait()
        seconds = time.monotonic() - started
    return ExitStatus(code if code >= 0 else 128 - code, max(0, -code), seconds)


def _start(target: Target, environ: Mapping[str, str]) -> subprocess.Popen[bytes]:
    argv = target.argv(sys.executable)
    try:
        # Descriptors that we were given for the program (a job server's pipe, say) are its own: close_fds=False.
        return subprocess.Popen(argv, env=dict(environ), close_fds=False)
    except FileNotFoundError as error:
        raise CommandNotFound(argv[0]) from error
    except OSError as error:
        raise CommandNotRunnable(argv[0], error.strerror or str(error)) from error
