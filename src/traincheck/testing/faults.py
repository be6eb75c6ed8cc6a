"""Makes parts of TrainCheck fail while a program trains, to prove that the program does not notice.

For the tests of a package that brings its own source. Every function that a source guards (`Recorder.guarded`) is a
*callback*. Watching a program lists them, so tests need no list of their own::

    from traincheck.testing import faults

    with faults.watching() as callbacks:
        train_observed()
    for callback in callbacks:
        with faults.failing(callback, MemoryError) as fault:
            train_observed()          # trains as it does unobserved
        assert fault.times == 1       # TrainCheck disables the source after its first fault

Stages and sinks are functions of a window or of a finding. `failing_at` makes any method of any class fail, and
`hanging_at` makes it wait until the block ends.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

Error = Callable[[], BaseException]
"""Creates the error to raise, for example a class of errors."""

HANGS = 300.0
"""Seconds after which a hanging method returns, so that every test ends."""


class Callback(NamedTuple):
    """A guarded callback: the name of its source, and of its function with module and line."""

    source: str
    function: str


@dataclass
class Fault:
    """The number of failures so far. `over` ends them."""

    times: int = 0
    over: bool = False


def callback_of(source: str, function: Any) -> Callback:
    """The callback that a guarded function is."""
    while isinstance(function, functools.partial):
        function = function.func
    function = getattr(function, "__func__", function)
    while "__wrapped__" in getattr(function, "__dict__", ()):
        function = function.__wrapped__  # the callback of a block around this one
    code = getattr(function, "__code__", None)
    name = f"{function.__module__}.{getattr(function, '__qualname__', repr(function))}"
    return Callback(source, f"{name}:{code.co_firstlineno}" if "<l" in name and code is not None else name)


@contextmanager
def watching() -> Iterator[dict[Callback, int]]:
    """The callbacks that sources guard in the block, each with the number of its calls."""
    counts: dict[Callback, int] = {}

    def called(callback: Callback) -> None:
        counts[callback] += 1

    with _guarding(lambda callback: counts.setdefault(callback, 0), called):
        yield counts


@contextmanager
def failing(callback: Callback, error: Error = LookupError, after: int = 0) -> Iterator[Fault]:
    """Make a callback raise instead of run, after it ran `after` times."""
    fault = Fault()
    calls = 0

    def called(current: Callback) -> None:
        nonlocal calls
        if current == callback:
            calls += 1
            if calls > after and not fault.over:
                fault.times += 1
                raise error()

    with _guarding(lambda callback: None, called):
        yield fault


@contextmanager
def _guarding(made: Callable[[Callback], object], called: Callable[[Callback], None]) -> Iterator[None]:
    from traincheck.sources.recording.recorder import Recorder

    original = Recorder.guarded

    def guarded(recorder: Any, source: str, function: Callable[..., Any], **how: Any) -> Any:
        callback = callback_of(source, function)
        made(callback)

        def watched(*args: Any, **kwargs: Any) -> Any:
            called(callback)
            return function(*args, **kwargs)

        return original(recorder, source, functools.update_wrapper(watched, function), **how)

    with _in_place(Recorder, "guarded", guarded):
        yield


@contextmanager
def failing_at(holder: Any, method: str, error: Error = LookupError, after: int = 0) -> Iterator[Fault]:
    """Make a method of a class (or a function of a module) raise after it ran `after` times."""
    fault = Fault()
    original, calls = getattr(holder, method), 0

    @functools.wraps(original)
    def broken(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls > after and not fault.over:
            fault.times += 1
            raise error()
        return original(*args, **kwargs)

    with _in_place(holder, method, broken):
        yield fault


@contextmanager
def hanging_at(holder: Any, method: str, after: int = 0) -> Iterator[Fault]:
    """Make a method of a class hang until the block ends, after it ran `after` times."""
    fault = Fault()
    original, calls, over = getattr(holder, method), 0, threading.Event()

    @functools.wraps(original)
    def hanging(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls > after and not fault.over:
            fault.times += 1
            over.wait(HANGS)
        return original(*args, **kwargs)

    try:
        with _in_place(holder, method, hanging):
            yield fault
    finally:
        over.set()


@contextmanager
def _in_place(holder: Any, name: str, other: Any) -> Iterator[None]:
    original = vars(holder)[name]
    setattr(holder, name, other)
    try:
        yield
    finally:
        setattr(holder, name, original)
