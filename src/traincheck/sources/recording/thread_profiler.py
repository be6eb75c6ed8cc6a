"""Python's profiler of a thread, which observes functions of the project before Python 3.12.

Note [Imports of libraries]
Python calls the profiler for each function. An import of transformers calls some million functions, and none of them
belongs to the project. So the profiler is paused while a module of a library is imported. It sees the beginning of the
import, but once paused, it does not see the end. As its last step, the import system sets `_initializing` of the spec
to False. So the spec has a temporary class until then.

Known limitation: what a library imports is not observed meanwhile, even if it is a module of the project.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from importlib.machinery import SourceFileLoader
from types import CodeType, FrameType
from typing import Any


class ThreadProfiler(threading.local):
    """The profiler that TrainCheck has set in a thread, if any: Python calls it for every function that is entered.

    Python calls it for TrainCheck's functions as well, which would double their cost; so it is paused while they run. A
    profiler that the program sets stays. `suppressed` is True while no function of the thread is recorded,
    `unrecorded_calls` counts the open calls of project functions that were called too often to be recorded, and
    `suspended` is True between watched windows.
    """

    # Defaults of the class, not of `__init__`: Python calls `__init__` once per thread, and since 3.12 the monitoring
    # of calls reads these attributes during it, before it has set them.
    callback: Any = None
    suppressed = False
    unrecorded_calls = 0
    suspended = False
    paused = False
    _resume_later = False

    def pause(self) -> bool:
        """Remove the profiler; whether `resume` has to be called."""
        if self.suppressed:
            if self.paused or not self._resume_later:
                return False
        elif self.callback is None or sys.getprofile() is not self.callback:
            return False
        else:
            sys.setprofile(None)
        self.paused = True
        return True

    def resume(self) -> None:
        """Set the profiler again after `pause`, unless the program has set a profiler meanwhile."""
        self.paused = False
        if self.suspended:
            return
        if self.suppressed:
            self._resume_later = True
        elif sys.getprofile() is None:
            sys.setprofile(self.callback)

    def suppress(self) -> None:
        """Record no functions of this thread until `unsuppress`. Call while paused."""
        self.suppressed, self._resume_later = True, False

    def unsuppress(self) -> None:
        """Undo `suppress`."""
        if self.suppressed:
            self.suppressed = False
            if self._resume_later and not (self.paused or self.suspended) and sys.getprofile() is None:
                sys.setprofile(self.callback)


class ProfilerSuspension:
    """Suspends the profiler of the thread that creates this object, see `Suspendable`.

    `open_calls` holds the calls under way; a suspended profiler does not see their ends, so they are dropped.
    """

    def __init__(self, profiler: ThreadProfiler, open_calls: list[Any]) -> None:
        self._profiler = profiler
        self._open_calls = open_calls
        self._thread = threading.get_ident()
        self._suspended = False

    def suspend(self) -> None:
        """See `Suspendable`. A profiler of the program stays."""
        profiler = self._profiler
        if self._suspended or threading.get_ident() != self._thread or profiler.callback is None:
            return
        if profiler.paused or sys.getprofile() is profiler.callback:
            self._suspended = profiler.suspended = True
            self._open_calls.clear()
            profiler.unrecorded_calls = 0
            sys.setprofile(None)

    def end(self) -> None:
        """End a suspension without setting the profiler again, because it is about to be removed."""
        if self._suspended and threading.get_ident() == self._thread:
            self._suspended = self._profiler.suspended = False

    def can_resume(self) -> bool:
        """See `Suspendable`."""
        return not self._suspended or threading.get_ident() == self._thread

    def resume(self) -> None:
        """See `Suspendable`. A profiler that the program has set meanwhile stays."""
        if self._suspended:
            self._suspended = self._profiler.suspended = False
            if sys.getprofile() is None:
                sys.setprofile(self._profiler.callback)


EXECUTES_MODULE: CodeType = SourceFileLoader.exec_module.__code__
"""The code that runs the body of a module."""


class LibraryImports:
    """Pauses `profiler` during imports of libraries, see Note [Imports of libraries]."""

    def __init__(
        self,
        profiler: ThreadProfiler,
        is_observed: Callable[[str, str], bool],
        failed: Callable[[Exception], object],
    ) -> None:
        """`is_observed` says whether a file, of a module of this name, is observed. `failed` gets what goes wrong."""
        self._profiler = profiler
        self._is_observed = is_observed
        self._failed = failed

    def begins(self, frame: FrameType) -> None:
        """`EXECUTES_MODULE` begins in this frame. (A guarded function would resume the profiler at its end.)"""
        try:
            spec: Any = getattr(frame.f_locals.get("module"), "__spec__", None)
            # Without `_initializing` it is no import (a reload, or a program that loads a file); its end stays unknown.
            is_import = getattr(spec, "_initializing", False)
            if is_import and not self._is_observed(spec.origin or "", spec.name):
                _pause_until_initialized(spec, self._profiler)
        except Exception as error:
            self._failed(error)


def _pause_until_initialized(spec: Any, profiler: ThreadProfiler) -> None:
    plain = type(spec)

    def set_attribute(self: Any, attribute: str, value: Any) -> None:
        object.__setattr__(self, attribute, value)
        if attribute == "_initializing" and not value:
            spec.__class__ = plain
            profiler.resume()

    awaited = type(plain.__name__, (plain,), {"__setattr__": set_attribute})
    if profiler.pause():
        spec.__class__ = awaited
