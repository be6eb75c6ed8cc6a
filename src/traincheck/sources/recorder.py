"""The recorder: where sources put the events of this process, and where windows are cut from them."""

from __future__ import annotations

import functools
import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from torch.compiler import is_compiling

from traincheck.sources.profiler import Profiler
from traincheck.sources.sites import Sites
from traincheck.sources.steps import Cut, StepTracker
from traincheck.sources.tensors import unseen
from traincheck.vocab.events import MODULE, NO_CALL, Call, Change, Reading, TensorSummary, Window
from traincheck.vocab.facts import Facts

R = TypeVar("R")


MOST_EVENTS = 500_000
"""Events of one window: some 200 MB. An epoch of evaluation of a large model may come near; a program in which no step
is ever seen to end would grow without bound."""


class OpenCall:
    """A call that has begun and not yet ended."""

    __slots__ = ("args", "context", "kind", "levels", "note", "parent", "receiver", "seq", "site", "tensors")

    def __init__(
        self,
        seq: int,
        parent: int,
        kind: str,
        levels: tuple[str, ...],
        receiver: str,
        site: str,
        context: Facts,
        args: Facts,
    ) -> None:
        self.seq = seq
        self.parent = parent
        self.kind = kind
        self.levels = levels
        self.receiver = receiver
        self.site = site
        self.context = context
        self.args = args
        self.note: Any = None
        self.tensors: tuple[TensorSummary, ...] = ()  # of its arguments first, those of its result are added at its end


class _PerThread(threading.local):
    """The open calls of a thread, and its number in order of appearance."""

    numbers = itertools.count()

    def __init__(self) -> None:
        self.stack: list[OpenCall] = []
        self.asking = False
        self.fetching: str | None = None
        self.number = next(self.numbers)


class Recorder:
    """Collects calls and changes and hands whole windows to `on_window`.

    All methods are cheap enough for the training loop and may be called from any thread. A fault in a source is
    counted by `fault` and reported through `on_fault` once per source; nothing here raises into the program.
    """

    def __init__(
        self,
        sites: Sites,
        on_window: Callable[[Window], None],
        on_fault: Callable[[str, BaseException], None],
        rank: int = 0,
        process: int = 0,
    ) -> None:
        self.sites = sites
        self.profiler = Profiler()
        self.steps = StepTracker(self._cut)
        self.rank = rank
        self.process = process
        self.active = True
        self.window = 0  # the index of the one that is open
        self.dropped = 0  # windows that grew beyond MOST_EVENTS
        self.find_rank: Callable[[], int] = lambda: self.rank  # asked when a window ends
        self.late_names: Callable[[str], dict[str, str] | None] = lambda stage: None  # see `Storages.late_names`
        self.late_changes: Callable[[str], object] = lambda stage: None  # see `Settling.tell`
        self._on_window = on_window
        self._on_fault = on_fault
        self._seq = itertools.count()
        self._local = _PerThread()
        self._calls: list[Call] = []
        self._changes: list[Change] = []
        self._readings: list[Reading] = []
        self._overflowed = False
        self._start = 0
        self._faulty: set[str] = set()
        self._last_words: list[Callable[[], object]] = []
        self.missed: list[str] = []  # what could not be observed, as found out on the way
        self._cutting = threading.Lock()

    # -- events ----------------------------------------------------------------------------------------------------

    def next_seq(self) -> int:
        """The next position among the events of this process."""
        return next(self._seq)

    def enter(
        self,
        kind: str,
        levels: tuple[str, ...],
        receiver: str = "",
        context: Facts = (),
        args: Facts = (),
        site: str | None = None,
    ) -> OpenCall:
        """Note that a call begins; hand the result to `leave` or `abandon`."""
        stack = self._local.stack
        parent = stack[-1].seq if stack else NO_CALL
        if site is None:
            site = self.sites.here()
        call = OpenCall(next(self._seq), parent, kind, levels, receiver, site, context, args)
        stack.append(call)
        return call

    def leave(self, call: OpenCall, result: Facts = ()) -> None:
        """Note that `call` ended; open calls inside it that never ended (they raised) are closed with it."""
        self._record(call, next(self._seq), result)

    def abandon(self, call: OpenCall) -> None:
        """Note that `call` raised: it has no end."""
        self._record(call, NO_CALL, ())

    def _record(self, call: OpenCall, end: int, result: Facts) -> None:
        local = self._local
        stack = local.stack
        if stack and stack[-1] is call:
            stack.pop()
        elif call in stack:
            del stack[stack.index(call) :]
        # A call that began before this window spans several; no window could judge it (Note [One window per step]).
        if call.seq >= self._start and self._has_room():
            told = (
                call.seq,
                end,
                call.parent,
                call.kind,
                call.levels,
                call.receiver,
                call.site,
                call.context,
                call.args,
                result,
                local.number,
                call.tensors,
            )
            self._calls.append(Call._make(told))  # twice as fast as to name the fields, and done for every call

    def change(self, change: Change) -> None:
        """Note what a variable was before and after."""
        if self._has_room():
            self._changes.append(change)

    def reading(self, reading: Reading) -> None:
        """Note the value of something."""
        if self._has_room():
            self._readings.append(reading)

    def _has_room(self) -> bool:
        """Whether the window can take another event; one that cannot is given up as a whole."""
        if self._overflowed:
            return False
        if len(self._calls) + len(self._changes) + len(self._readings) >= MOST_EVENTS:
            self._overflowed = True
            self._calls, self._changes, self._readings = [], [], []
        return not self._overflowed

    @contextmanager
    def asking(self) -> Iterator[None]:
        """While we ask code of the program something (how long a data set is), what runs for it is no event."""
        self._local.asking = True
        try:
            with unseen():
                yield
        finally:
            self._local.asking = False

    @property
    def asks(self) -> bool:
        """Whether this thread runs code of the program because we ask it something, see `asking`."""
        return self._local.asking

    @property
    def updating(self) -> bool:
        """Whether an optimizer is stepping: what it computes inside is its own affair."""
        return self.steps.updating

    def innermost(self) -> OpenCall | None:
        """The call of this thread that began last and has not ended."""
        stack = self._local.stack
        return stack[-1] if stack else None

    @property
    def fetching(self) -> str | None:
        """Where this thread asks a data loader for a batch, None where it does not.

        What the loader and what it is made of compute there is their own affair, as opposed to code of the program's
        (a data set, a collate function), which has sites of its own.
        """
        return self._local.fetching

    @fetching.setter
    def fetching(self, site: str | None) -> None:
        self._local.fetching = site

    def amid_module(self) -> bool:
        """Whether the innermost call of this thread is that of a module."""
        call = self.innermost()
        return call is not None and call.kind == MODULE

    # -- windows ---------------------------------------------------------------------------------------------------

    def told_of_tensors(self) -> Iterator[TensorSummary]:
        """What was told of tensors so far in the window that is open."""
        calls: list[Call | OpenCall] = [*self._calls, *self._local.stack]
        for call in calls:
            if call.seq >= self._start:
                yield from call.tensors

    def _cut(self, cut: Cut) -> None:
        """Close the current window: what began before `cut.seq` belongs to it, the rest to the next."""
        self.late_changes(cut.stage)
        names = self.late_names(cut.stage)
        with self._cutting:
            calls, changes, readings = self._calls, self._changes, self._readings
            if names:
                calls = [_renamed(call, names) for call in calls]
            self._calls = [call for call in calls if call.seq >= cut.seq]
            self._changes = [change for change in changes if change.seq >= cut.seq]
            self._readings = [reading for reading in readings if reading.seq >= cut.seq]
            self._start = cut.seq
            self.window += 1
            if self._overflowed:
                self._overflowed = False
                self.dropped += 1
                return
            window = Window(
                index=self.window - 1,
                step=cut.step,
                stage=cut.stage,
                calls=tuple(sorted(call for call in calls if call.seq < cut.seq and call.end < cut.seq)),
                changes=tuple(sorted(change for change in changes if change.seq < cut.seq)),
                rank=self.find_rank(),
                process=self.process,
                readings=tuple(sorted(reading for reading in readings if reading.seq < cut.seq)),
            )
        self._on_window(window)

    def at_end(self, tell: Callable[[], object]) -> None:
        """Have `tell` (guarded) called when the run ends: what it notes is in the last window."""
        self._last_words.append(tell)

    def finish(self) -> None:
        """Close the last window."""
        began = self.next_seq()
        for tell in self._last_words:
            tell()
        self.active = False
        self.steps.finish(began, self.next_seq())

    # -- faults ----------------------------------------------------------------------------------------------------

    def miss(self, what: str) -> None:
        """Note that something cannot be observed here, and why; the rest of its source goes on."""
        if what not in self.missed:
            self.missed.append(what)

    def fault(self, source: str, error: BaseException) -> None:
        """Note that a source failed; it is told once and the source observes no more (see `guarded`)."""
        if source not in self._faulty:
            self._faulty.add(source)
            self._on_fault(source, error)

    def guarded(self, source: str, function: Callable[..., R]) -> Callable[..., R | None]:
        """`function`, made safe for the training loop.

        It returns None where it fails, after its source has failed before, and once observation has ended.
        """
        faulty, profiler = self._faulty, self.profiler

        @functools.wraps(function)
        def safe(*args: Any, **kwargs: Any) -> R | None:
            if is_compiling() or not self.active or source in faulty:
                return None  # the compiler traces this far and no further: a compiled region is not observed inside
            paused = profiler.pause()
            try:
                return function(*args, **kwargs)
            except Exception as error:
                self.fault(source, error)
                return None
            finally:
                if paused:
                    profiler.resume()

        return safe


def _renamed(call: Call, names: dict[str, str]) -> Call:
    """`call` with other names for the memory of its tensors."""
    if not any(tensor.storage in names for tensor in call.tensors):
        return call
    tensors = (tensor._replace(storage=names.get(tensor.storage, tensor.storage)) for tensor in call.tensors)
    return call._replace(tensors=tuple(tensors))
