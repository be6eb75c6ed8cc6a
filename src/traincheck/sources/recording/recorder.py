"""The recorder takes the events that sources record in this process, and hands them on as windows.

Note [Windows that are not watched]
Sampling skips some steps. In a skipped step `guarded` functions return at once; functions that count steps, or follow
state that a later step needs, are guarded with `always`. Hooks that cost time by being installed are suspended, see
sampling_gate.py. The recorder knows at the beginning of a window whether it is watched, from the number of the coming
step. But a cut may be backdated, and the recorder hands on a window as a whole or not at all. So it takes events from
where the next window *may* begin (`_on_opening`), and drops them where no window began. After a gap sources forget the
state that they follow, and report again the values that they report once.
"""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

from traincheck.sources.recording.availability import SourceAvailability
from traincheck.sources.recording.call_sites import CallSites
from traincheck.sources.recording.call_stack import CallStack, ThreadState
from traincheck.sources.recording.call_stack import OpenCall as OpenCall
from traincheck.sources.recording.fault_guard import guard
from traincheck.sources.recording.global_hooks import GlobalHooks
from traincheck.sources.recording.listener import Listeners, RecorderListener
from traincheck.sources.recording.overhead import Lap, OverheadMeter
from traincheck.sources.recording.sampling_gate import CountedSteps, SamplingGate
from traincheck.sources.recording.step_tracker import Cut, StepTracker
from traincheck.sources.recording.suppression import Suppression
from traincheck.sources.recording.thread_profiler import ThreadProfiler
from traincheck.sources.recording.window_buffer import MAX_EVENTS, WindowBuffer
from traincheck.sources.tensors.deferred_values import is_capturing
from traincheck.sources.tensors.device_transfers import DeviceTransfers, StartedTransfer
from traincheck.sources.tensors.reading import hidden_from_modes
from traincheck.vocab.events import END, MODULE, NO_CALL, TRAIN, Call, Change, Reading, TensorSummary, Window
from traincheck.vocab.facts import Facts

R = TypeVar("R")


class _LateWindow(NamedTuple):
    """A window that is not handed on yet, because the values of `transfer` are on their way. See Note [Late windows] in
    device_transfers.py. It extends from position `start` to `end`; `window` is None if it was dropped."""

    transfer: StartedTransfer
    window: Window | None
    names: dict[str, str]
    start: int
    end: int


class Recorder:
    """Collects calls, changes and readings, and hands whole windows to `on_window`.

    `is_sampled` says whether a step is watched; the recorder calls it once for each step, in order, except for steps
    that are only counted (see sampling_gate.py, also for `quiet_steps`). `observes_rare_event` says whether to watch a
    rare event of this kind that begins after a step that is not watched. `find_rank` returns the rank of this process
    whenever a window ends, for a process may learn its rank late.

    All methods are cheap enough for the training loop, and any thread may call them. Nothing here raises into the
    program: a fault in a source disables that source, and `on_fault` reports it once.
    """

    def __init__(
        self,
        sites: CallSites,
        on_window: Callable[[Window], None],
        on_fault: Callable[[str, BaseException], None],
        *,
        process: int = 0,
        find_rank: Callable[[], int] = lambda: 0,
        is_sampled: Callable[[int], bool] = lambda step: True,
        quiet_steps: Callable[[int, int], int] | None = None,
        observes_rare_event: Callable[[str], bool] = lambda kind: False,
        meter: OverheadMeter | None = None,
    ) -> None:
        self.sites = sites
        self.process = process
        self.hooks = GlobalHooks()
        self.profiler = ThreadProfiler()
        self.suppression = Suppression(self.hooks, self.profiler)
        self.meter = meter or OverheadMeter()
        self.sampling_gate = SamplingGate(is_sampled)
        self.steps = StepTracker(self._cut, self._on_opening, self._on_change, self._on_update)
        self.counted = CountedSteps(self.steps, self.meter.clock, quiet_steps, self._on_change)
        self._step_seconds = math.inf  # of the latest window that was not watched
        self.availability = SourceAvailability()
        self.active = True
        self.watching = True  # whether events are taken now
        self.reattaching = False  # whether sources are being attached again, for another demand
        self.watched_steps = 0  # training steps that were handed on
        self.window_index = 0  # of the open window
        self.dropped_windows = 0  # windows with too many events, and windows that failed
        self.unobservable: list[str] = []  # descriptions, for the report
        self.has_compiled_code = False  # whether the program called a compiled function outside updates
        self._listeners = Listeners()
        self.between_calls = self._listeners.between_calls  # sources call this between the calls of a step
        self._find_rank = find_rank
        self._observes_rare_event = observes_rare_event
        self._on_window = on_window
        self._on_fault = on_fault
        self._seq = itertools.count()
        self.next_seq: Callable[[], int] = self._seq.__next__  # the next position among the events of this process
        self._thread = ThreadState()
        self._stack = CallStack()
        self._buffer = WindowBuffer()
        self.transfers = DeviceTransfers(self, self._buffer)
        self._complete = True  # whether the open window has been watched from its beginning on
        self._taken_from = 0  # all events from this position on were taken, while `watching`
        self._handed_from = self._handed_until = 0  # what the readers of windows have got, see `was_handed_on`
        self._end_seq = -1  # where the end of the run began
        self._unseen_training = -1  # where the program trained in a way that cannot be observed
        self._at_end: list[Callable[[], object]] = []
        self._close_lock, self._closing_thread = threading.RLock(), 0
        self._late_window: _LateWindow | None = None

    # -- listeners -------------------------------------------------------------------------------------------------

    def add_listener(self, listener: RecorderListener) -> None:
        """Call the methods of `listener` at the events of this recorder. Adding it again changes nothing."""
        self._listeners.add(listener)
        self.between_calls = self._listeners.between_calls

    def remove_listener(self, listener: RecorderListener) -> None:
        """No longer call the methods of `listener`. It may be added again."""
        self._listeners.remove(listener)
        self.between_calls = self._listeners.between_calls

    def raise_suspicion(self) -> None:
        """A rule was violated. May be called from any thread."""
        for suspicion_raised in self._listeners.suspicion_raised:
            suspicion_raised()

    def autocast_changed(self, *, entered: bool) -> None:
        """A region of autocast begins or ends, see `RecorderListener.autocast_changed`."""
        for autocast_changed in self._listeners.autocast_changed:
            autocast_changed(entered=entered)

    def report_scheduler_step(self, scheduler: Any) -> None:
        """A scheduler stepped in a compiled function, see `RecorderListener.scheduler_stepped`."""
        for scheduler_stepped in self._listeners.scheduler_stepped:
            scheduler_stepped(scheduler)

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
        """Record that a call begins. Pass the result to `leave` or `abandon`."""
        stack = self._stack.calls
        parent = stack[-1].seq if stack else NO_CALL
        if site is None:
            site = self.sites.here()
        call = OpenCall(next(self._seq), parent, kind, levels, receiver, site, context, args)
        stack.append(call)
        return call

    def leave(self, call: OpenCall, result: Facts = (), *, raised: bool = False, end: int | None = None) -> None:
        """Record that `call` ended (at `end`), and close the open calls inside it, which raised."""
        end = NO_CALL if raised else next(self._seq) if end is None else end
        stack, buffer = self._stack.calls, self._buffer
        if stack and stack[-1] is call:
            stack.pop()
        elif call in stack:
            del stack[stack.index(call) :]
        # A call that began before this window spans several; no window could judge it (Note [One window per step]).
        if call.seq >= buffer.start and self._accepts_event():
            fields = (
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
                self._thread.number,
                call.tensors,
            )
            buffer.calls.append(tuple.__new__(Call, fields))  # as `_make` does it, without a call of Python

    def abandon(self, call: OpenCall) -> None:
        """Record that `call` raised: it has no end."""
        self.leave(call, raised=True)

    def record_changes(self, changes: Sequence[Change]) -> None:
        """Record the states of variables before and after a call."""
        if changes and self._accepts_event():
            self._buffer.changes += changes

    def record_reading(self, reading: Reading) -> None:
        """Record a value at one moment."""
        if self._accepts_event():
            self._buffer.readings.append(reading)

    def _accepts_event(self) -> bool:
        """Whether events are taken now. Drops the open window if it is full."""
        if self.watching:
            buffer = self._buffer
            if len(buffer.calls) + len(buffer.changes) + len(buffer.readings) >= MAX_EVENTS:
                self.drop_window()
        return self.watching

    def drop_window(self) -> None:
        """Drop the open window, which is then not handed on."""
        self.dropped_windows += self._complete
        self._complete = self.watching = False
        self._buffer.clear()

    @contextmanager
    def querying_program(self) -> Iterator[None]:
        """Run code of the program for TrainCheck (such as the length of a data set) without recording its calls."""
        self._thread.queries_program = True
        try:
            with hidden_from_modes():
                yield
        finally:
            self._thread.queries_program = False

    @property
    def queries_program(self) -> bool:
        """Whether this thread is inside `querying_program`."""
        return self._thread.queries_program

    @property
    def window_start(self) -> int:
        """The position at which the open window begins."""
        return self._buffer.start

    @property
    def updating(self) -> bool:
        """Whether an optimizer is stepping."""
        return self.steps.updating

    def innermost_call(self) -> OpenCall | None:
        """The call of this thread that began last and has not ended."""
        stack = self._stack.calls
        return stack[-1] if stack else None

    @property
    def fetch_site(self) -> str | None:
        """The site at which this thread fetches a batch from a data loader, None outside a fetch.

        Computations at this site are the loader's own. Code of the program that the loader calls (a data set, a collate
        function) has other sites.
        """
        return self._thread.fetch_site

    @fetch_site.setter
    def fetch_site(self, site: str | None) -> None:
        self._thread.fetch_site = site

    def inside_module_call(self) -> bool:
        """Whether the innermost call of this thread is a call of a module."""
        stack = self._stack.calls
        return bool(stack) and stack[-1].kind == MODULE

    # -- windows ---------------------------------------------------------------------------------------------------

    def tensor_summaries(self) -> Iterator[TensorSummary]:
        """The tensor summaries recorded so far in the open window."""
        return self._buffer.tensor_summaries(self._stack.calls)

    def mark_unseen_training(self, seq: int) -> None:
        """The program trained at `seq` in a way that cannot be observed. Consumers see its window as dropped ones."""
        self._unseen_training = seq

    def _cut(self, cut: Cut) -> None:
        """Close the current window, or drop it where that fails (out of memory, for instance)."""
        thread = threading.get_ident()
        if self._closing_thread == thread:
            return  # a signal handler trains while this runs; its events go into the next window
        if self.counted.left:
            self.counted.end()
        try:
            self._closing_thread = thread
            self._close(cut)
        except Exception as error:
            self._buffer.clear()
            self.window_index, self.dropped_windows = self.window_index + 1, self.dropped_windows + 1
            self.fault("windows", error)
        finally:
            self._closing_thread = 0

    def _close(self, cut: Cut) -> None:
        """Close the current window: events that began before `cut.seq` belong to it, the others to the next."""
        transfer = None
        if self.transfers.late or self.transfers:
            transfer = self._start_transfer(cut)
        complete, window, unseen = self._complete, None, 0 <= self._unseen_training < cut.seq
        names: dict[str, str] = {}
        start = self._buffer.start
        with self._close_lock:
            self.window_index += unseen
            if complete or 0 <= self._end_seq < cut.seq:
                window = self._take_window(cut, complete, names)
            elif self.watching:
                self._buffer.discard_before(cut.seq)
            disabled = self.availability.close_window(cut.seq)
            if disabled is None:  # see Note [Silence is not absence]
                self.dropped_windows += complete
                window = None
            elif disabled and window is not None:
                window = replace(window, readings=(*disabled, *window.readings))
            self.window_index += 1 + unseen
            self._unseen_training = -1 if unseen else self._unseen_training
        lap = self._lap(complete)
        for window_measured in self._listeners.window_measured:
            window_measured(cut.stage, complete, lap)
        self._begin_window(cut.seq)
        if transfer is not None:
            self._late_window = _LateWindow(transfer, window, names, start, cut.seq)
            if window is None or not self._complete:  # the next window is not watched
                self.finish_late_window()
        if disabled is None or unseen:
            self.sampling_gate.reset_sources()
        if window is not None and transfer is None:
            self._hand_on(window, cut.seq)
        for window_closed in self._listeners.window_closed:
            window_closed(cut)

    def _lap(self, watched: bool) -> Lap:
        """The time of the window that closes, the mean with the windows that were only counted before it."""
        windows, self.counted.windows = 1 + self.counted.windows, 0
        self.window_index += windows - 1
        lap = self.meter.lap(windows)
        self._step_seconds = math.inf if watched else lap.wall
        return lap

    def update_counts(self, optimizer: Any, name: str) -> None:
        """Only count the next updates of `optimizer`, whose update in an unwatched window ends, if that is possible."""
        unwatched = not (self.watching or self._complete or self.transfers.late)
        if unwatched and self.active and self.hooks.in_one_thread and not self.has_compiled_code:
            self.counted.begin(optimizer, name, self._step_seconds)

    def _hand_on(self, window: Window, end: int) -> None:
        """Hand a window on that ends at this position."""
        self._handed_until = end
        self.watched_steps += window.stage == TRAIN
        self._on_window(window)

    def _start_transfer(self, cut: Cut) -> StartedTransfer | None:
        """Begin to fetch values for the window that is about to close; None if its conclusions are drawn already."""
        if self._complete and cut.stage == TRAIN and self._end_seq < 0 and self.transfers.may_be_late:
            return self.transfers.start()
        self.transfers.flush()
        return None

    def finish_late_window(self) -> None:
        """Draw the conclusions of the window before the open one, and hand that window on, if it is late.

        During CUDA graph capture the window stays late, because asking for an event would end the capture.
        """
        if is_capturing():
            return
        with self._close_lock:
            late, self._late_window = self._late_window, None
            window = None if late is None else self._concluded(late)
        if late is not None and window is not None:
            self._hand_on(window, late.end)

    def _concluded(self, late: _LateWindow) -> Window | None:
        """A late window with the events of its conclusions; None if it was dropped, or if a conclusion fails."""
        window, late_buffer, buffer, watching = late.window, WindowBuffer(), self._buffer, self.watching
        late_buffer.start = late.start
        if window is not None:
            late_buffer.calls, late_buffer.changes = list(window.calls), list(window.changes)
            late_buffer.readings = list(window.readings)
        self._buffer, self.watching = late_buffer, True
        try:
            succeeded = self.transfers.conclude(late.transfer, (late_buffer, buffer)) and self.watching
        except Exception as error:
            succeeded = False
            self.fault("windows", error)
        finally:
            self._buffer, self.watching = buffer, watching
        calls, changes, readings = late_buffer.take_until(late.end, late.names)
        if watching:  # the other events have positions in the open window
            buffer.calls += late_buffer.calls
            buffer.changes += late_buffer.changes
            buffer.readings += late_buffer.readings
        if window is None or not succeeded:
            self.dropped_windows += window is not None
            return None
        disabled = [reading for reading in window.readings if reading.seq < 0]  # sources that were disabled throughout
        return replace(window, calls=calls, changes=changes, readings=(*disabled, *readings))

    def _take_window(self, cut: Cut, complete: bool, names: dict[str, str]) -> Window:
        """The window that ends at the cut. An incomplete window only holds how the run ended. Adds the variables that
        hold numbered storages to `names`."""
        if complete:
            for window_closing in self._listeners.window_closing:
                window_closing(cut)
            for storage_names in self._listeners.storage_names:
                names.update(storage_names(cut.stage) or {})
        calls, changes, readings = self._buffer.take_until(cut.seq, names)
        return Window(
            index=self.window_index,
            step=cut.step,
            stage=cut.stage if complete else END,
            calls=calls,
            changes=changes,
            rank=self._find_rank(),
            process=self.process,
            readings=readings,
        )

    # -- gaps, see Note [Windows that are not watched] -------------------------------------------------------------

    def after_gap(
        self, source: str, reset: Callable[[], object], *, undo: ExitStack | None = None, repeatable: bool = False
    ) -> None:
        """Call `reset` whenever events are taken again after a gap; with `undo`, only until that stack is closed.

        After a gap a source must not compare with a state from before it. A source must also report again the values
        that it reports once, or on a change, for the readers of windows forget as well. (No reader forgets a
        description that it got, see descriptions.py.) A `reset` that only makes the source report again is
        `repeatable`: `repeat_reports` calls it, too.
        """
        guarded_reset = self.guarded(source, reset, always=True)
        self.sampling_gate.add_reset(guarded_reset, repeatable=repeatable)
        if undo is not None:
            undo.callback(self.sampling_gate.remove_reset, guarded_reset)

    def repeat_reports(self) -> None:
        """Make sources report again the values that they report once, for a reader that begins with the next window."""
        self._handed_from = self._handed_until
        self.sampling_gate.repeat_reports()

    def was_handed_on(self, seq: int) -> bool:
        """Whether the readers of windows have got the event at `seq`; ask in a `reset`.

        They have not if its window was dropped, or if the readers begin later (see `repeat_reports`).
        """
        return self._handed_from <= seq < self._handed_until

    def _on_opening(self, seq: int) -> None:
        """The next window may begin at `seq`: take events if it is to be watched."""
        if not self._complete and self.sampling_gate.is_watched(self.steps.step + 1):
            self._take_from(seq)

    def rare_event(self, kind: str) -> None:
        """A rare event of this kind begins. Take events from here on if it is to be watched, see `Sampling`."""
        if self.watching or self._complete or not (self.active and self.steps.between_steps):
            return
        if self._observes_rare_event(kind):
            if self.counted.left:
                self.counted.end()
            self.sampling_gate.ask_again()
            self.steps.rare_event(self.next_seq())

    def _on_change(self) -> None:
        for forward_awaited in self._listeners.forward_awaited:
            forward_awaited()

    def _on_update(self) -> None:
        for optimizer_stepped in self._listeners.optimizer_stepped:
            optimizer_stepped()
        for forward_awaited in self._listeners.forward_awaited:
            forward_awaited()

    def _begin_window(self, seq: int) -> None:
        """The window before `seq` is closed: decide whether the window that begins there is watched."""
        complete, self._complete = self._complete, False
        if not (self._end_seq >= 0 or self.sampling_gate.is_watched(self.steps.window_step)):
            if self.watching:
                self.watching = False
                self._buffer.clear()
            self.sampling_gate.suspend()
        elif complete:
            self._complete = self.watching
        elif (self.watching and self._taken_from <= seq) or next(self._seq) == seq + 1:  # no event was missed
            self._take_from(seq)
            self._complete = self.watching

    def _take_from(self, seq: int) -> None:
        """Take events from `seq` on."""
        if self.watching and self._taken_from == seq:
            return
        if not self.watching:
            if not self.sampling_gate.resume():
                return
            self._buffer.clear()
            self._stack = CallStack()  # the ends of open calls may have been missed
            self.watching = True
        self._taken_from = seq
        self._buffer.discard_before(seq)
        self.sampling_gate.reset_sources()

    # -- sources ---------------------------------------------------------------------------------------------------

    @contextmanager
    def reattachment(self) -> Iterator[None]:
        """Sources are detached and attached again inside this block; they keep their state, see `on_detach`."""
        self.reattaching = True
        try:
            yield
        finally:
            self.reattaching = False

    def on_detach(self, undo: ExitStack, function: Callable[[], object]) -> None:
        """Call `function` when `undo` is closed, except in a `reattachment`."""
        undo.callback(lambda: None if self.reattaching else function())

    def drop_call(self, call: OpenCall) -> None:
        """Close an open call of this thread whose end cannot be observed; the open calls inside it stay."""
        stack = self._stack.calls
        if call in stack:
            inner = stack[stack.index(call) + 1 :]
            self.abandon(call)
            stack.extend(inner)

    def at_end(self, record: Callable[[], object]) -> None:
        """Call `record` (guarded) when the run ends; its events are in the last window."""
        self._at_end.append(record)

    def clear_at_end(self) -> None:
        """Forget the functions passed to `at_end`: sources are about to pass them again."""
        self._at_end.clear()

    def finish(self) -> None:
        """Close the last window."""
        self._end_seq = began = self.next_seq()
        if not self.watching:  # the end is recorded whether the step is watched or not
            self._buffer.clear()
            self._stack, self._taken_from, self._buffer.start, self.watching = CallStack(), began, began, True
            self.sampling_gate.reset_sources()
        if self.transfers.late or self.transfers:
            self.transfers.flush()
        for record in self._at_end:
            record()
        self.deactivate()
        self.steps.finish(began, self.next_seq())

    def deactivate(self) -> None:
        """Record nothing from now on."""
        self.active = False

    # -- faults ----------------------------------------------------------------------------------------------------

    def report_unobservable(self, description: str) -> None:
        """Report once that something cannot be observed here, and the reason; its source goes on."""
        if description not in self.unobservable:
            self.unobservable.append(description)

    def fault(self, source: str, error: BaseException) -> None:
        """Disable a source that failed, and report that once."""
        with self._close_lock:  # two threads may meet the same fault at one moment
            first = self.availability.mark_failed(source, self._buffer.start, self.next_seq())
        if first:
            self._drop_open_calls(source)
            with suppress(Exception):
                self._on_fault(source, error)

    def switch(self, source: str, *, off: bool) -> None:
        """Switch a source off or on. Call between windows, on the thread that trains."""
        seqs = self._buffer.start, self.next_seq()
        availability = self.availability
        if availability.switch_off(source, *seqs) if off else availability.switch_on(source, *seqs):
            self._drop_open_calls(source)
            for source_switched in self._listeners.source_switched:
                source_switched(source, off=off)

    def _drop_open_calls(self, source: str) -> None:
        """Open calls of this thread may have no recorded end now. Their window is left out in any case."""
        self._stack.calls.clear()
        if source == "loaders":
            self._thread.fetch_site = None
            self.suppression.end()
            self.steps.fetch_abandoned()

    def guarded(self, source: str, function: Callable[..., R], *, always: bool = False) -> Callable[..., R | None]:
        """`function`, safe for the training loop, with its time counted for `source`.

        It returns None where it raises, after its source has failed, and after the end of the recording; unless
        `always`, also in steps that are not watched.
        """
        return guard(self, source, function, always=always)
