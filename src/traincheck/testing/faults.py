"""Faults: makes parts of TrainCheck fail while a program trains, to see that nothing of it is felt there.

For the tests of a package that brings its own source: every callback that a source has guarded (`Recorder.guarded`) is
a *place*, found by watching a program, so that a callback of tomorrow is one as well::

    from traincheck.testing import faults

    with faults.watching() as places:
        train_observed()
    for place in places:
        with faults.failing(place, MemoryError) as fault:
            train_observed()          # as it trains without us
        assert fault.times == 1       # after the first fault the source is asked no more

Stages and sinks are functions of a window or of a finding; `failing_at` makes any method of any class fail,
`hanging_at` makes it wait until the block is left.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

Error = Callable[[], BaseException]
"""Makes the error that is raised: a class of errors, say."""

HANGS = 300.0
"""Seconds after which what hangs gives up, so that a test which forgot it ends."""


class Place(NamedTuple):
    """A callback of a source: the source's name, and that of the function with its module and line."""

    source: str
    function: str


@dataclass
class Fault:
    """How many times it came to a failure; none comes any more when it is `over`."""

    times: int = 0
    over: bool = False


def place_of(source: str, function: Any) -> Place:
    """The place of a function that a source has guarded."""
    while isinstance(function, functools.partial):
        function = function.func
    function = getattr(function, "__func__", function)
    code = getattr(function, "__code__", None)
    name = f"{function.__module__}.{getattr(function, '__qualname__', repr(function))}"
    return Place(source, f"{name}:{code.co_firstlineno}" if "<l" in name and code is not None else name)


@contextmanager
def watching() -> Iterator[dict[Place, int]]:
    """The places that are guarded in the block, each with how many times the program came through it."""
    found: dict[Place, int] = {}

    def comes(place: Place) -> None:
        found[place] += 1

    with _guarding(lambda place: found.setdefault(place, 0), comes):
        yield found


@contextmanager
def failing(place: Place, error: Error = LookupError, after: int = 0) -> Iterator[Fault]:
    """Have the callback at `place` raise, in place of what it does, when it was called `after` times without."""
    fault = Fault()
    calls = 0

    def comes(here: Place) -> None:
        nonlocal calls
        if here == place:
            calls += 1
            if calls > after and not fault.over:
                fault.times += 1
                raise error()

    with _guarding(lambda place: None, comes):
        yield fault


@contextmanager
def _guarding(made: Callable[[Place], object], comes: Callable[[Place], None]) -> Iterator[None]:
    from traincheck.sources.recording.recorder import Recorder

    original = Recorder.guarded

    def guarded(recorder: Any, source: str, function: Callable[..., Any], **how: Any) -> Any:
        place = place_of(source, function)
        made(place)

        def watched(*args: Any, **kwargs: Any) -> Any:
            comes(place)
            return function(*args, **kwargs)

        return original(recorder, source, functools.update_wrapper(watched, function), **how)

    with _in_place(Recorder, "guarded", guarded):
        yield


@contextmanager
def failing_at(holder: Any, method: str, error: Error = LookupError, after: int = 0) -> Iterator[Fault]:
    """Have a method of a class (or a function of a module) raise when it was called `after` times without."""
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
    """Have a method of a class hang, until the block is left, when it was called `after` times without."""
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
