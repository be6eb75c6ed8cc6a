"""The recorder: where sources put the events of this process, and where windows are cut from them.

Note [Windows that are not watched]
Not every step need be watched. In one that is not, `guarded` functions return at once; those that count steps, or
follow what is still true later, are guarded with `always`. What is costly merely by being there is taken off, see
sampling_gate.py. Whether a window is watched is known when it begins, by the number of the step to come. But a cut may
be
backdated, and a window is handed on as a whole or not at all. So events are taken from where the next one *may* begin
(`_opens`), and thrown away where it did not. After a gap sources forget what was, and tell anew what they tell once.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from typing import Any, TypeVar

from traincheck.sources.recording.availability import Absences
from traincheck.sources.recording.call_sites import Sites
from traincheck.sources.recording.call_stack import Doing, OpenCalls
from traincheck.sources.recording.call_stack import OpenCall as OpenCall
from traincheck.sources.recording.fault_guard import guard
from traincheck.sources.recording.global_hooks import Hooks
from traincheck.sources.recording.overhead import Meter
from traincheck.sources.recording.sampling_gate import Gaps
from traincheck.sources.recording.step_tracker import Cut, StepTracker
from traincheck.sources.recording.suppression import Aside
from traincheck.sources.recording.thread_profiler import Profiler
from traincheck.sources.recording.window_buffer import MOST_EVENTS, OpenWindow
from traincheck.sources.tensors.device_transfers import Transfers
from traincheck.sources.tensors.reading import unseen
from traincheck.vocab.events import END, MODULE, NO_CALL, TRAIN, Call, Change, Reading, TensorSummary, Window
from traincheck.vocab.facts import Facts

R = TypeVar("R")


class Recorder:
    """Collects calls and changes and hands whole windows to `on_window`.

    All methods are cheap enough for the training loop and may be called from any thread. A fault in a source is counted
    and told through `on_fault` once per source; nothing here raises into the program.
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
        self.hooks = Hooks()
        self.profiler = Profiler()
        self.aside = Aside(self.hooks, self.profiler)
        self.meter = Meter()
        self.gaps = Gaps()
        self.steps = StepTracker(self._cut, self._opens)
        self.absences = Absences()
        self.changing = False  # sources are attached anew, for another demand
        self.at_rest: Callable[[], None] = lambda: None  # called between the calls of a step, see `Attachment`
        self.suspect: Callable[[], None] = lambda: None  # called where something wrong was found
        self.at_border: Callable[[Cut], None] = lambda cut: None  # called when a window was cut
        self.switches: dict[str, Callable[[bool], object]] = {}  # called when a source is silenced, or goes on
        self.rank, self.process = rank, process
        self.active = True
        self.watching = True  # whether events are taken now
        self.watched_steps = 0  # training steps that were handed on
        self.window = 0  # the index of the one that is open
        self.dropped = 0  # windows that grew beyond what memory may be taken
        self.find_rank: Callable[[], int] = lambda: self.rank  # asked when a window ends
        self.late_names: Callable[[str], dict[str, str] | None] = lambda stage: None  # see `Storages.late_names`
        self.late_changes: Callable[[str], object] = lambda stage: None  # see `Settling.tell`
        self.after_schedule: Callable[[Any], object] = lambda scheduler: None  # tells of one that stepped unseen
        self._on_window = on_window
        self._on_fault = on_fault
        self._seq = itertools.count()
        self.next_seq: Callable[[], int] = self._seq.__next__  # the next position among the events of this process
        self._local = Doing()
        self._open = OpenCalls()
        self._told = OpenWindow()
        self.transfers = Transfers(self, self._told)
        self._whole = True  # whether the open window is watched from its beginning on
        self._since = 0  # from where on all events were taken, while they are
        self._ends_at = -1  # where the end began
        self._unseen = -1  # where something was trained that could not be observed
        self.last_words: list[Callable[[], object]] = [self.transfers.settle]
        self.missed: list[str] = []  # what could not be observed, as found out on the way
        self._cutting, self._cutter = threading.RLock(), 0  # of the thread that cuts

    # -- events ----------------------------------------------------------------------------------------------------

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
        stack = self._open.stack
        parent = stack[-1].seq if stack else NO_CALL
        if site is None:
            site = self.sites.here()
        call = OpenCall(next(self._seq), parent, kind, levels, receiver, site, context, args)
        stack.append(call)
        return call

    def leave(self, call: OpenCall, result: Facts = (), *, raised: bool = False, end: int | None = None) -> None:
        """Note that `call` ended (at `end`); open calls inside it that never ended (they raised) are closed with it."""
        end = NO_CALL if raised else next(self._seq) if end is None else end
        stack, window = self._open.stack, self._told
        if stack and stack[-1] is call:
            stack.pop()
        elif call in stack:
            del stack[stack.index(call) :]
        # A call that began before this window spans several; no window could judge it (Note [One window per step]).
        if call.seq >= window.start and self._has_room():
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
                self._local.number,
                call.tensors,
            )
            window.calls.append(tuple.__new__(Call, told))  # as `_make` does it, without a call of Python

    def abandon(self, call: OpenCall) -> None:
        """Note that `call` raised: it has no end."""
        self.leave(call, raised=True)

    def changed(self, changes: Sequence[Change]) -> None:
        """Note what variables were before and after."""
        if changes and self._has_room():
            self._told.changes += changes

    def reading(self, reading: Reading) -> None:
        """Note the value of something."""
        if self._has_room():
            self._told.readings.append(reading)

    def _has_room(self) -> bool:
        """Whether events are taken; a window that cannot take another one is given up as a whole."""
        if self.watching and len((told := self._told).calls) + len(told.changes) + len(told.readings) >= MOST_EVENTS:
            self.give_up()
        return self.watching

    def give_up(self) -> None:
        """Let go of the open window: it is not told."""
        self.dropped += self._whole
        self._whole = self.watching = False
        self._told.throw_away()

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
    def start(self) -> int:
        """The place at which the open window begins."""
        return self._told.start

    @property
    def asks(self) -> bool:
        """Whether this thread runs code of the program because we ask it something, see `asking`."""
        return self._local.asking

    @property
    def updating(self) -> bool:
        """Whether an optimizer is stepping."""
        return self.steps.updating

    def innermost(self) -> OpenCall | None:
        """The call of this thread that began last and has not ended."""
        stack = self._open.stack
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
        stack = self._open.stack
        return bool(stack) and stack[-1].kind == MODULE

    # -- windows ---------------------------------------------------------------------------------------------------

    def told_of_tensors(self) -> Iterator[TensorSummary]:
        """What was told of tensors so far in the window that is open."""
        return self._told.tensors(self._open.stack)

    def lose_sight(self, seq: int) -> None:
        """Note that something unseen was trained at `seq`: its window is cut off, as if some around it were dropped."""
        self._unseen = seq

    def _cut(self, cut: Cut) -> None:
        """Close the current window, or give it up where that fails (for want of memory, say)."""
        me = threading.get_ident()
        if self._cutter == me:
            return  # a handler of a signal trains in the midst of this; what it does goes into the next window
        try:
            self._cutter = me
            self._close(cut)
        except Exception as error:
            self._told.throw_away()
            self.window, self.dropped = self.window + 1, self.dropped + 1
            self.fault("windows", error)
        finally:
            self._cutter = 0

    def _close(self, cut: Cut) -> None:
        """Close the current window: what began before `cut.seq` belongs to it, the rest to the next."""
        self.transfers.settle()
        whole, window, unseen = self._whole, None, 0 <= self._unseen < cut.seq
        with self._cutting:
            self.window += unseen
            if whole or 0 <= self._ends_at < cut.seq:
                window = self._closed(cut, whole)
            elif self.watching:
                self._told.keep_from(cut.seq)
            absent = self.absences.cut(cut.seq)
            if absent is None:  # see Note [Silence is not absence]
                self.dropped += whole
                window = None
            elif absent and window is not None:
                window = replace(window, readings=(*absent, *window.readings))
            self.window += 1 + unseen
            self._unseen = -1 if unseen else self._unseen
        self.gaps.took(cut.stage, whole, self.meter.lap())
        self._next_window(cut.seq)
        if absent is None or unseen:
            self.gaps.forget()
        if window is not None:
            self.watched_steps += whole and cut.stage == TRAIN
            self._on_window(window)
        self.at_border(cut)

    def _closed(self, cut: Cut, whole: bool) -> Window:
        """The window that ends at the cut; of one that was not watched all that is told is how the run ended."""
        if whole:
            self.late_changes(cut.stage)
        names = self.late_names(cut.stage) if whole else None
        calls, changes, readings = self._told.take_until(cut.seq, names)
        return Window(
            index=self.window,
            step=cut.step,
            stage=cut.stage if whole else END,
            calls=calls,
            changes=changes,
            rank=self.find_rank(),
            process=self.process,
            readings=readings,
        )

    # -- gaps, see Note [Windows that are not watched] -------------------------------------------------------------

    def after_gap(self, source: str, forget: Callable[[], object], *, only_tells: bool = False) -> None:
        """Have `forget` called whenever events are taken again after some were not.

        Then nothing may be told to have changed, or not to have, since before the gap; and what is told once, or only
        when it changes, has to be told again, for whoever follows the windows forgets as well. Where `forget` only
        tells again, it is called at other times, too.
        """
        forget = self.guarded(source, forget, always=True)
        self.gaps.forgetting.append(forget)
        self.gaps.telling += [forget] if only_tells else []

    def tell_anew(self) -> None:
        """Someone may begin to read with the next window: sources tell anew what they tell once."""
        self.gaps.tell_anew()

    def _opens(self, seq: int) -> None:
        """What begins at `seq` may be of the next window: take events if that is to be watched."""
        if not self._whole and self.gaps.is_watched(self.steps.step + 1):
            self._take_from(seq)

    def _next_window(self, begins: int) -> None:
        """The window before `begins` is closed: find out whether the one that begins there is watched."""
        whole, self._whole = self._whole, False
        if not (self._ends_at >= 0 or self.gaps.is_watched(self.steps.coming)):
            if self.watching:
                self.watching = False
                self._told.throw_away()
            self.gaps.take_off()
        elif whole:
            self._whole = self.watching
        elif (self.watching and self._since <= begins) or next(self._seq) == begins + 1:  # nothing was missed
            self._take_from(begins)
            self._whole = self.watching

    def _take_from(self, seq: int) -> None:
        """Take events from `seq` on."""
        if self.watching and self._since == seq:
            return
        if not self.watching:
            if not self.gaps.put_on():
                return
            self._told.throw_away()
            self._open = OpenCalls()  # the end of what was open may have been missed
            self.watching = True
        self._since = seq
        self._told.keep_from(seq)
        self.gaps.forget()

    def when_over(self, undo: ExitStack, function: Callable[[], object]) -> None:
        """Have `undo` call a function, but not where the source is only attached anew."""
        undo.callback(lambda: None if self.changing else function())

    def let_go(self, call: OpenCall) -> None:
        """Note that nobody will see the end of an open call of this thread; what is open inside it stays."""
        stack = self._open.stack
        if call in stack:
            inner = stack[stack.index(call) + 1 :]
            self.abandon(call)
            stack.extend(inner)

    def at_end(self, tell: Callable[[], object]) -> None:
        """Have `tell` (guarded) called when the run ends: what it notes is in the last window."""
        self.last_words.append(tell)

    def finish(self) -> None:
        """Close the last window."""
        self._ends_at = began = self.next_seq()
        if not self.watching:  # what is told last is told, whether the step is watched or not
            self._told.throw_away()
            self._open, self._since, self._told.start, self.watching = OpenCalls(), began, began, True
            self.gaps.forget()
        for tell in self.last_words:
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
        with self._cutting:  # two threads may meet the same fault at one moment
            first = self.absences.fails(source, self._told.start, self.next_seq())
        if first:
            self._forget_open(source)
            with suppress(Exception):
                self._on_fault(source, error)

    def switch(self, source: str, *, off: bool) -> None:
        """Have a source tell nothing from here on, or tell again. Call on the thread that trains, between windows."""
        places = self._told.start, self.next_seq()
        absences = self.absences
        if absences.silence(source, *places) if off else absences.resume(source, *places):
            self._forget_open(source)
            if source in self.switches:
                self.switches[source](off)

    def _forget_open(self, source: str) -> None:
        """What is under way in this thread may not be told to its end; its window is left out anyway."""
        self._open.stack.clear()
        if source == "loaders":
            self._local.fetching = None
            self.aside.end()
            self.steps.fetch_lost()

    def guarded(self, source: str, function: Callable[..., R], *, always: bool = False) -> Callable[..., R | None]:
        """`function`, made safe for the training loop, and its time counted.

        It returns None where it fails, after its source has failed before, and once observation has ended; and in what
        is not watched, unless it is to be called `always`.
        """
        return guard(self, source, function, always=always)
