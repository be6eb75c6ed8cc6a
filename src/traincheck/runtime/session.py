"""The session: joins the stages in one observed process, from the first import of torch to its end."""

from __future__ import annotations

import atexit
import os
import platform
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from traincheck.checking.engine import demand_of
from traincheck.checking.live import LiveChecker
from traincheck.errors import StopTraining, TrainCheckError
from traincheck.invariants.book import Book, read_books
from traincheck.invariants.selection import deployable
from traincheck.reporting.base import Sink
from traincheck.runtime import place
from traincheck.runtime.complaint import complain
from traincheck.runtime.pipeline import Pipeline, Stage
from traincheck.runtime.settings import Settings
from traincheck.runtime.telling import Telling
from traincheck.trace.folder import RunFolder
from traincheck.trace.notes import ProcessNote, StopAsked
from traincheck.trace.writer import TraceWriter
from traincheck.vocab.demand import EVERYTHING
from traincheck.vocab.events import Window
from traincheck.vocab.finding import Finding
from traincheck.vocab.invariant import ERROR

current: Session | None = None
"""The session of this process. (A process has one interpreter to observe, hence one session at a time.)"""


def start(settings: Settings, show: Callable[[Finding], None] | None = None) -> Session:
    """Start observing this process. `show` tells live findings; by default they go to stderr.

    Raises TrainCheckError where the run folder or the book cannot be used.
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
    return session


class Session:
    """Observes this process until `stop`, which the interpreter calls at its end."""

    def __init__(self, settings: Settings, show: Callable[[Finding], None] | None = None) -> None:
        self.settings = settings
        self.running = False
        self._show = show or _terminal(settings)
        self._folder = RunFolder.open(settings.run_folder)
        self._process = os.getpid()
        self._told_place = place.here()  # what the process was told of it by now
        self._place = self._in_folder()
        self._placed = False  # known for good: the first window has ended
        self._faults: list[str] = []
        self._missing: list[str] = []
        self._stop_because: StopAsked | None = None
        self._undo = ExitStack()
        self._lock = threading.Lock()
        self._noting = threading.Lock()

    def start(self) -> None:
        """Attach the sources. Imports torch."""
        from traincheck.sources.recorder import Recorder
        from traincheck.sources.registry import attach, build
        from traincheck.sources.sites import Sites

        book = read_books([Path(path) for path in self.settings.books]) if self.settings.books else Book(())
        rules = deployable(book.invariants, self.settings.script)
        demand = EVERYTHING if self.settings.mode == "collect" else demand_of(rules)
        self._writer: TraceWriter | None = None
        self._telling: Telling | None = None
        stages: list[Stage] = [("trace", self._write)]
        self._checker: LiveChecker | None = None
        if self.settings.mode == "run":
            self._checker = LiveChecker(rules, self._folder.path, self._process, self._found)
            stages.append(("checking", self._checker.feed))
            self._telling = Telling(
                self._folder,
                self._process,
                rules,
                self.settings.compare_ranks,
                on_decided=lambda: self._write_note(ended=False),
                on_finding=self._found_of_ranks,
                on_stop=self._stop_for,
                on_fault=self._fault,
            )
            stages.append(("ranks", self._tell))
            if self.settings.on_violation == "stop":
                stages.append(("stopping", self._look_for_stop))
        self._pipeline = Pipeline(stages, self._fault)
        self.recorder = Recorder(Sites(self.settings.project), self._window, self._fault, process=self._process)
        self.recorder.find_rank = self._find_rank
        sources = build(self.recorder, self._may_step)
        undo, self._missing = attach(sources, demand, self.recorder)
        self._undo.enter_context(undo)
        self._pipeline.start()
        self.running = True
        self._write_note(ended=False)
        atexit.register(self.stop)
        os.register_at_fork(after_in_child=self._forked)

    def stop(self) -> None:
        """Detach, write what is left, and end. Never raises."""
        with self._lock:
            if not self.running:
                return
            self.running = False
        try:
            self.recorder.finish()
            self._undo.close()
            self._pipeline.close()
            if self._writer is not None:
                self._writer.close()
            if self._telling is not None:
                self._telling.close()
            if self._checker is not None:
                self._checker.save()
            self._write_note(ended=True)
        except Exception as error:
            self._fault("session", error)
        atexit.unregister(self.stop)

    def detach(self) -> None:
        """Take every hook back; what was recorded so far stays."""
        self.running = False
        self._undo.close()

    # -- what happens on the way -----------------------------------------------------------------------------------

    def _find_rank(self) -> int:
        """The rank of this process, asked when a window ends: by the first one it is known, where there are ranks."""
        if not self._placed:
            self._placed = True
            told, self._told_place = self._told_place, place.here()
            if told != self._told_place:
                self._folder.withdraw_note(told.rank, self._process)
                self._place = self._in_folder()
                self._write_note(ended=False)
        return self._place.rank

    def _in_folder(self) -> place.Place:
        """The place of this process among those that left recordings in the run folder before."""
        found = self._told_place
        if found.world_size < 2:
            return found
        try:
            return place.told_apart(found, self._folder.trained_as(found.rank, self._process))
        except TrainCheckError:  # a folder that was deleted; the writer will say so
            return found

    def _window(self, window: Window) -> None:
        self._pipeline.put(window)

    def _write(self, window: Window) -> None:
        if self._writer is None:
            self._writer = TraceWriter(self._folder.path, window.rank, self._process)
        self._writer.write(window)

    def _tell(self, window: Window) -> None:
        if self._telling is not None:
            self._telling.feed(window, self._place)

    def _look_for_stop(self, window: Window) -> None:
        """Whether the process that started us asks to stop, for what several ranks together have shown."""
        if self._stop_because is None:
            self._stop_because = self._folder.stop_asked()

    def _found(self, finding: Finding) -> None:
        self._show(finding)
        if self.settings.on_violation == "stop" and finding.severity == ERROR and self._stop_because is None:
            self._stop_because = StopAsked(title=finding.title, step=finding.step)

    def _found_of_ranks(self, finding: Finding) -> None:
        self._found(finding)
        if self._stop_because is not None and self._telling is not None:
            self._telling.ask_to_stop(self._stop_because)

    def _stop_for(self, because: StopAsked) -> None:
        """The rank that compares them all asks to stop."""
        if self.settings.on_violation == "stop" and self._stop_because is None:
            self._stop_because = because

    def _may_step(self) -> None:
        """Called before each optimizer step, on the training thread: the one place where we raise, on request."""
        because = self._stop_because
        if because is not None and self.running:
            self._folder.update(stopped_by_us=True)
            raise StopTraining(because.title, because.step)

    def _fault(self, source: str, error: BaseException) -> None:
        """A stage of ours failed: say so once, and go on without it."""
        told = f"{source}: {type(error).__name__}: {error}"
        self._faults.append(told)
        complain(f"{told} (the training goes on; this part of it is no longer observed)")
        if os.environ.get("TRAINCHECK_DEBUG"):
            sys.excepthook(type(error), error, error.__traceback__)

    def _forked(self) -> None:
        """In a forked child (a data loader worker): its threads are gone and its files are the parent's; be quiet."""
        self.running = False
        self.recorder.active = False

    def _write_note(self, *, ended: bool) -> None:
        import torch

        note = ProcessNote(
            rank=self._place.rank,
            process=self._process,
            world_size=self._place.world_size,
            job=self._place.job,
            exchange=self._telling is not None and self._telling.exchanging,
            torch=str(torch.__version__),
            python=platform.python_version(),
            windows=self._pipeline.closed,
            dropped=self._pipeline.dropped + self.recorder.dropped,
            steps=self._pipeline.steps,
            not_observed=tuple(self._missing + self._faults + self.recorder.missed),
            cost=dict(self._pipeline.seconds),
            sent=self._telling.sent if self._telling is not None else {},
            ended=ended,
        )
        try:
            with self._noting:  # the exchange has a thread of its own
                self._folder.write_note(note)
        except TrainCheckError as error:
            complain(str(error))


def _terminal(settings: Settings) -> Callable[[Finding], None]:
    """Shows live findings on stderr, without importing the terminal library before there is something to show."""

    sinks: list[Sink] = []

    def show(finding: Finding) -> None:
        if not settings.live_terminal:
            return
        if not sinks:
            from traincheck.reporting.terminal import TerminalSink

            sinks.append(TerminalSink())
        sinks[0].show(finding)

    return show
