"""Guards functions of sources: an exception disables the source instead of ending the training, and time is counted."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from traincheck.sources.compile.tracing import EXPORTS, FLAGS, is_traced
from traincheck.sources.recording.availability import SourceAvailability
from traincheck.sources.recording.global_hooks import GlobalHooks
from traincheck.sources.recording.overhead import OverheadMeter
from traincheck.sources.recording.thread_profiler import ThreadProfiler

R = TypeVar("R")


class GuardedRecorder(Protocol):
    """The parts of a recorder that a guard uses."""

    availability: SourceAvailability
    hooks: GlobalHooks
    profiler: ThreadProfiler
    meter: OverheadMeter
    watching: bool
    active: bool

    def fault(self, source: str, error: BaseException) -> None:
        """Report that a source failed, and disable it."""


def guard(
    recorder: GuardedRecorder, source: str, function: Callable[..., R], *, always: bool
) -> Callable[..., R | None]:
    """See `Recorder.guarded`."""
    disabled, profiler, meter = recorder.availability.disabled, recorder.profiler, recorder.meter
    clock, counter, thread = meter.clock, meter.counter(source), recorder.hooks.thread

    @functools.wraps(function)
    def safe(*args: Any, **kwargs: Any) -> R | None:
        if is_traced is None:  # the interpreter ends, and has removed the globals
            return None
        if is_traced() or FLAGS.get(EXPORTS) or not (recorder.watching or always):
            return None
        if not recorder.active or source in disabled or thread.suspended:
            return None
        paused = profiler.callback is not None and not (profiler.paused or profiler.suspended) and profiler.pause()
        start = clock()
        outer, meter.inside = meter.inside, 0.0
        try:
            return function(*args, **kwargs)
        except Exception as error:
            recorder.fault(source, error)
            return None
        finally:
            took = clock() - start
            own = took - meter.inside
            counter[0] += own
            meter.total += own
            meter.inside = outer + took
            if paused:
                profiler.resume()

    return safe
