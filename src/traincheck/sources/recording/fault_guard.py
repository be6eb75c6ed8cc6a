"""Guard: makes what a source does safe for the training loop, and counts the time that it takes."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from traincheck.sources.compile.tracing import EXPORTS, FLAGS, is_traced
from traincheck.sources.recording.availability import Absences
from traincheck.sources.recording.global_hooks import Hooks
from traincheck.sources.recording.overhead import Meter
from traincheck.sources.recording.thread_profiler import Profiler

R = TypeVar("R")


class Guarding(Protocol):
    """What a guard asks of the recorder."""

    absences: Absences
    hooks: Hooks
    profiler: Profiler
    meter: Meter
    watching: bool
    active: bool

    def fault(self, source: str, error: BaseException) -> None:
        """A source failed."""


def guard(recorder: Guarding, source: str, function: Callable[..., R], *, always: bool) -> Callable[..., R | None]:
    """See `Recorder.guarded`."""
    silent, profiler, meter = recorder.absences.silent, recorder.profiler, recorder.meter
    clock, spent, here = meter.clock, meter.of(source), recorder.hooks.here

    @functools.wraps(function)
    def safe(*args: Any, **kwargs: Any) -> R | None:
        if is_traced() or FLAGS.get(EXPORTS) or not (recorder.watching or always):
            return None
        if not recorder.active or source in silent or here.aside:
            return None
        paused = profiler.ours is not None and not profiler.paused and profiler.pause()
        began = clock()
        outer, meter.inside = meter.inside, 0.0
        try:
            return function(*args, **kwargs)
        except Exception as error:
            recorder.fault(source, error)
            return None
        finally:
            took = clock() - began
            own = took - meter.inside
            spent[0] += own
            meter.total += own
            meter.inside = outer + took
            if paused:
                profiler.resume()

    return safe
