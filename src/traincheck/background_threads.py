"""Background: the threads of ours beside the program, to which the system hands none of the program's signals.

Note [Signals belong to the program]
The system hands a signal that is sent to a process to any of its threads that does not block it. A program that blocks
one in order to ask or to wait for it (`sigpending`, `sigwait`) would lose it to a thread of ours, or be ended by it.
So our threads block all signals but those that tell of a fault in the thread itself.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable

NAME = "traincheck"
"""How the names of our threads begin."""

_OF_A_THREAD = ("SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL", "SIGABRT", "SIGTRAP", "SIGSYS")


def background(target: Callable[..., object], name: str, *args: object) -> threading.Thread:
    """Start a thread that never keeps the program from ending. Raises RuntimeError where there can be no more threads.

    A thread starts with the mask of the one that starts it, so this one takes on the mask for that moment.
    """
    thread = threading.Thread(target=target, name=name, args=args, daemon=True)
    mask = getattr(signal, "pthread_sigmask", None)
    if mask is None:
        thread.start()
        return thread
    before = mask(signal.SIG_BLOCK, ())  # asked first: a handler of the program's may raise out of the next line
    try:
        mask(signal.SIG_BLOCK, signal.valid_signals() - {getattr(signal, one, signal.SIGSEGV) for one in _OF_A_THREAD})
        thread.start()
    finally:
        mask(signal.SIG_SETMASK, before)
    return thread


def others() -> list[threading.Thread]:
    """The threads of the program that run beside this one."""
    mine = threading.current_thread()
    return [one for one in threading.enumerate() if one is not mine and not one.name.startswith(NAME)]
