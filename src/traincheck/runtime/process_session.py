"""Holds the session of this process, and notifies it of forks and of the interpreter's end."""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Callable
from contextlib import suppress

from traincheck.runtime.launching.run_settings import Settings
from traincheck.runtime.session import Session
from traincheck.vocab.finding import Finding

current: Session | None = None
"""The session of this process. (A process has one interpreter, so it has one session at a time.)"""


def start(settings: Settings, show: Callable[[Finding], None] | None = None) -> Session:
    """Start observing this process. `show` displays live findings; by default they go to stderr.

    Raises TrainCheckError if the run folder or the book cannot be used.
    """
    global current
    if current is not None and current.running:
        return current
    session = Session(settings, show)
    try:
        session.start()
    except BaseException:
        session.detach()
        raise
    current = session
    session.on_end = _ended
    _watch_process()
    return session


_watching = False


def _watch_process() -> None:
    """Register the callbacks for forks and the exit, once for all sessions. Python cannot unregister them."""
    global _watching
    if not _watching:
        _watching = True
        atexit.register(_at_exit)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_in_fork)


def _at_exit() -> None:
    if current is not None:
        current.on_exit()
        _keep_interrupt()


def _keep_interrupt() -> None:
    """Let Python end by SIGINT after a Ctrl-C that ended the program.

    Python notes that such an exception left the main code, and forgets it when it executes text, as a data class or a
    named tuple does on import. TrainCheck imports modules at the end, and the program would exit with 1 instead.
    """
    if isinstance(getattr(sys, "last_value", None), KeyboardInterrupt):
        with suppress(KeyboardInterrupt):
            exec("raise KeyboardInterrupt")  # Python notes that one in its place


def _before_fork() -> None:
    if current is not None and current.running:
        current.pause()


def _after_fork() -> None:
    if current is not None and current.running:
        current.resume()


def _in_fork() -> None:
    global current
    if current is not None:
        current.forked()
        current = None


def _ended() -> None:
    global current
    current = None
