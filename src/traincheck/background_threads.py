"""Starts TrainCheck's background threads, which never receive a signal meant for the program.

Note [Signals belong to the program]
The system delivers a signal for a process to any thread that does not block it. A program that blocks a signal to wait
for it (`sigpending`, `sigwait`) would lose it to a background thread, or be ended by it. So TrainCheck's threads block
all signals except those that report a fault of the thread itself.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable

NAME = "traincheck"
"""The prefix of the names of TrainCheck's threads."""

_OF_A_THREAD = ("SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL", "SIGABRT", "SIGTRAP", "SIGSYS")


def background(target: Callable[..., object], name: str, *args: object) -> threading.Thread:
    """Start a daemon thread. Raises RuntimeError where the system allows no more threads.

    A thread inherits the signal mask of its creator, so this thread changes its own mask for that moment.
    """
    thread = threading.Thread(target=target, name=name, args=args, daemon=True)
    mask = getattr(signal, "pthread_sigmask", None)
    if mask is None:
        thread.start()
        return thread
    faults = {getattr(signal, fault, signal.SIGSEGV) for fault in _OF_A_THREAD}
    before = mask(signal.SIG_BLOCK, ())  # read first: a signal handler of the program may raise in the next line
    try:
        mask(signal.SIG_BLOCK, signal.valid_signals() - faults)
        thread.start()
    finally:
        mask(signal.SIG_SETMASK, before)
    return thread


def others() -> list[threading.Thread]:
    """The other running threads of the program."""
    mine = threading.current_thread()
    return [thread for thread in threading.enumerate() if thread is not mine and not thread.name.startswith(NAME)]
