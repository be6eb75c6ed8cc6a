"""Joins the stages in one observed process: sources, recording, checking and the comparison of ranks."""

from __future__ import annotations

import functools
import os
import platform
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from traincheck.background_threads import background, others
from traincheck.checking.engine import demand_of
from traincheck.checking.live import LiveChecker
from traincheck.checking.verification_tally import VerificationTally
from traincheck.errors import TrainCheckError
from traincheck.invariants.book import Book, read_books
from traincheck.invariants.selection import deployable
from traincheck.runtime.before_update import BeforeUpdate
from traincheck.runtime.control import ControlFollower, State
from traincheck.runtime.control_actions import ControlActions, snapshot
from traincheck.runtime.heartbeat import Heartbeat
from traincheck.runtime.launching.import_hooks import when_imported
from traincheck.runtime.launching.run_settings import Settings
from traincheck.runtime.marks import receive
from traincheck.runtime.ranks.rank_info import CurrentRank, RankInfo
from traincheck.runtime.ranks.rank_publisher import RankPublisher
from traincheck.runtime.recording.burst_recording import BurstRecorder
from traincheck.runtime.recording.pipeline import Last, Pipeline, Stage
from traincheck.runtime.recording.redaction import without_secrets
from traincheck.runtime.recording.sampling import Sampling
from traincheck.runtime.recording.window_recorder import WindowRecorder
from traincheck.runtime.stderr_log import in_words, log_warning
from traincheck.runtime.terminal_findings import shown_live
from traincheck.trace.folder import RunFolder
from traincheck.trace.run_notes import ProcessNote, StopRequest
from traincheck.vocab.demand import EVERYTHING, MODEL, NOTHING, WEIGHTS, Demand
from traincheck.vocab.events import Window
from traincheck.vocab.finding import Finding
from traincheck.vocab.invariant import ERROR, Invariant
from traincheck.vocab.option_values import ALL, OPERATIONS
from traincheck.vocab.run_configuration import RunConfiguration

if TYPE_CHECKING:
    from traincheck.runtime.recording.initial_states import InitialStates
    from traincheck.sources.attachment import Attachment
    from traincheck.sources.operations.marks import MarkSink
    from traincheck.sources.operations.whole_values import WholeValues
    from traincheck.sources.recording.step_tracker import Cut
    from traincheck.trace.operation_files import OperationWriter
    from traincheck.trace.record_files import RecordWriter
    from traincheck.trace.weight_versions import WeightVersions
    from traincheck.vocab.marks import Mark

NOTE_SECONDS = 2.0
"""Seconds that an incomplete end waits for its last note, as the disk may be the reason."""


class Session:
    """Observes this process until `stop`, which the interpreter calls at its end.

    Note [Errors stay in the session]
    No error of the session reaches the program: an error of a source or a stage is logged once, and the rest goes on.
    At the end each part runs by itself, so that an error in a part does not affect the others. Only an interrupt
    (Ctrl-C, an exit in a signal handler) belongs to the program: it ends the waiting and is raised.
    """

    def __init__(self, settings: Settings, show: Callable[[Finding], None] | None = None) -> None:
        self.settings = settings
        self.running = False
        self.on_end: Callable[[], object] = lambda: None
        self._show: Callable[[Finding], None] | None = show or shown_live(settings)
        self._folder = RunFolder.open(settings.run_folder)
        self._process = os.getpid()
        self._began, self._forks = time.monotonic(), 0
        self._ended = False  # the last note is written
        self._current_rank = CurrentRank(self._folder, self._process)
        self._faults: list[str] = []
        self._configuration: RunConfiguration | None = None  # until the first training step
        self._missing: list[str] = []
        self._state = State()
        self._control_follower: ControlFollower | None = None
        self._snapshot_due = settings.snapshot
        self._verified = VerificationTally()
        self._initial_states = self._find_initial_states()
        self.sampling = Sampling(settings.sample_every, settings.budget, settings.warm_up)
        self._undo = ExitStack()
        self._lock, self._noting = threading.Lock(), threading.Lock()

    def _find_initial_states(self) -> InitialStates | None:
        """The initial states, if this process saves one or begins with one."""
        if self.settings.record != OPERATIONS and not self.settings.initial_state:
            return None
        from traincheck.runtime.recording.initial_states import InitialStates

        return InitialStates(self.settings, self._process, lambda text: self._pipeline.say(text))

    def start(self) -> None:
        """Attach the sources. Imports torch."""
        from traincheck.sources.attachment import Attachment
        from traincheck.sources.checkpoints import snapshots  # noqa: F401  # it keeps the original torch.save
        from traincheck.sources.recording.call_sites import CallSites
        from traincheck.sources.recording.recorder import Recorder
        from traincheck.sources.registry import build_all

        book = read_books([Path(path) for path in self.settings.books]) if self.settings.books else Book(())
        rules = deployable(book.invariants, self.settings.script)
        demand = self._demand(rules)
        published_bytes = self.settings.keep_recording // 8 if self.settings.mode == "run" else 0
        self._publisher: RankPublisher | None = None
        recording_bytes = self.settings.keep_recording - published_bytes
        self._window_recorder = WindowRecorder(
            self._folder.path, self._process, recording_bytes, lambda: self.recorder.repeat_reports(), self._records_all
        )
        stages: list[Stage] = [("trace", self._window_recorder.feed)]
        self._checker: LiveChecker | None = None
        if self.settings.mode == "run":
            self._checker = LiveChecker(rules, self._folder.path, self._process, self._on_new_finding)
            stages.insert(0, ("checking", self._checker.feed))  # first, as findings select the windows to record
            self._publisher = publisher = self._rank_publisher(rules, published_bytes)
            stages.append(("ranks", lambda window: publisher.feed(window, self._rank_info)))
        if self.settings.verify_every:
            stages.append(("verification", self._verified.feed))
        operations, marks, whole_values = self._operation_writers(stages)
        unsaved = lambda: self._checker is not None and self._checker.unsaved  # noqa: E731
        heartbeat = Heartbeat(self._save_state, unsaved, _log_save_error, at_rest=lambda: self._at_rest(marks))
        stages.append(("heartbeat", heartbeat.feed))
        last, promptly = self._last(), self.settings.acts_on_findings
        self._pipeline = Pipeline(without_secrets(stages), self._fault, heartbeat, last, promptly=promptly)
        self.recorder = Recorder(
            CallSites(self.settings.project, self.settings.packages),
            self._window,
            self._fault,
            process=self._process,
            find_rank=self._find_rank,
            is_sampled=self._steps_to_watch(),
            quiet_steps=self._quiet_steps(),
            observes_rare_event=self.sampling.observes_rare_event,
        )
        self._set_up_budget()
        self._before_update = self._make_before_update()
        built = build_all(
            self.recorder,
            self._may_step,
            when_imported,
            self.settings.verify_every,
            installed=self.settings.installed_sources,
            operations=operations.add if operations is not None else None,
            whole_values=whole_values,
            marks=self._mark_sink(marks) if marks is not None else None,
            versions=self._weight_versions(demand),
            connect_marks=receive if marks is None else None,
            initial_state=self._initial_states.source if self._initial_states is not None else None,
        )
        self._catalog = built.catalog
        attached = Attachment(built.sources, demand, self.recorder, lambda: bool(built.call_context.training_flags))
        self._missing = attached.missing
        self._undo.enter_context(attached.undo)
        self._attach_control(attached)
        self._pipeline.start()
        self.running = True
        self._write_note(ended=False)
        if self._control_follower is not None:
            self._control_follower.start()

    def _demand(self, rules: Sequence[Invariant]) -> Demand:
        """What sources observe: what the rules need, or everything. A recording of operations needs nothing else."""
        if self.settings.mode == "collect":
            return NOTHING if self.settings.record == OPERATIONS else EVERYTHING
        demand = demand_of(rules)
        if self.settings.records_settings:
            from traincheck.relations.consistent.own_runs import REFERENCE

            demand |= REFERENCE
        return demand

    def _operation_writers(
        self, stages: list[Stage]
    ) -> tuple[OperationWriter | None, RecordWriter[Mark] | None, WholeValues | None]:
        """What takes operations, marks and whole values, if they are recorded.

        Adds the stages that write them, and the state with which the training began.
        """
        operations, marks, whole_values = None, None, None
        if self.settings.record == OPERATIONS:
            from traincheck.trace.operation_files import OperationWriter, mark_writer, whole_value_writer

            operations = OperationWriter(self._folder.path, self._process)
            marks = mark_writer(self._folder.path, self._process)
            stages += [("operations", operations.feed), ("marks", marks.feed)]
            if self.settings.whole_values:
                from traincheck.sources.operations.whole_values import WholeValues

                values = whole_value_writer(self._folder.path, self._process)
                whole_values = WholeValues(self.settings.whole_values, values.add)
                stages.append(("whole values", values.feed))
        if self._initial_states is not None:
            stages.append(("initial state", self._initial_states.feed))
        return operations, marks, whole_values

    def _mark_sink(self, marks: RecordWriter[Mark]) -> MarkSink:
        from traincheck.sources.operations.marks import MarkSink

        return MarkSink(marks.add, receive, lambda problem: self._pipeline.say(problem))

    def _make_before_update(self) -> BeforeUpdate:
        """What runs before each update."""
        return BeforeUpdate(
            step=lambda: self.recorder.steps.window_step + (self.recorder.counted.left > 0),
            snapshot=self._snapshot,
            on_stop=self._record_stop,
            callback=self.settings.callback if self.settings.on_violation == "callback" else "",
            last_step=self.settings.last_step,
        )

    def _weight_versions(self, demand: Demand) -> WeightVersions | None:
        """What connects copies of models with other processes, if they are compared."""
        if not demand.takes_reading(MODEL, WEIGHTS):
            return None
        from traincheck.trace.weight_versions import WeightVersions

        return WeightVersions(self._folder.path, self._process)

    def _at_rest(self, marks: RecordWriter[Mark] | None) -> None:
        """Write what waits, because a program without steps closes no window, and one that hangs may be killed."""
        self._window_recorder.at_rest()
        if marks is not None:
            marks.write(self._rank_info.rank)

    def _steps_to_watch(self) -> Callable[[int], bool]:
        """Return the function that says which steps are watched: those of the sampling, and all that are verified."""
        if not self.settings.verify_every:
            return self.sampling.watches
        from traincheck.sources.verification.verified_steps import VerifiedSteps

        verified = VerifiedSteps(self.settings.verify_every)
        return lambda step: self.sampling.watches(step) or verified.includes(step)

    def _quiet_steps(self) -> Callable[[int, int], int] | None:
        """Return the function that says how many steps in a row are not watched; None if each step is needed."""
        settings = self.settings
        each = settings.verify_every or settings.last_step or settings.record == OPERATIONS
        return None if each else self.sampling.quiet_steps

    def _rank_publisher(self, rules: Sequence[Invariant], keep: int) -> RankPublisher:
        """The publisher that sends what `rules` compare to other ranks, and keeps `keep` bytes of it in a file."""
        return RankPublisher(
            self._folder,
            self._process,
            rules,
            self.settings.compare_ranks,
            on_decided=lambda: self._write_note(ended=False),
            on_finding=self._on_rank_finding,
            on_stop=self._stop_for,
            on_fault=self._fault,
            keep=keep,
        )

    def _set_up_budget(self) -> None:
        """Connect the time budget to the background thread, and set whether the program waits for a device."""
        import torch

        self.sampling.budget.background = self._pipeline.spent
        self.sampling.budget.waits = torch.cuda.is_available()

    def stop(self) -> None:
        """Detach, write the remaining windows, and end. Raises only an interrupt of the program, at the end."""
        interrupt = self._stop()
        if interrupt is not None:
            raise interrupt

    def on_exit(self) -> None:
        """End with the interpreter, when no caller is left for an interrupt."""
        self._stop(detach=not others())  # a thread that still trains keeps its hooks

    def _stop(self, *, detach: bool = True) -> BaseException | None:
        """End; returns the interrupt, if there was one."""
        with self._lock:
            if not self.running:
                return None
            self.running = False
        interrupts = [self._try("session", self.recorder.finish)]
        self.recorder.deactivate()
        if detach:
            interrupts.append(self._try("session", self._undo.close))
        if not any(interrupts):
            interrupts.append(self._try("session", self._finish))
        interrupt = next((interrupt for interrupt in interrupts if interrupt is not None), None)
        if interrupt is not None:
            self._give_up(f"{self._pipeline.left} could not be written and checked: {in_words(interrupt)}")
        self.on_end()
        return interrupt

    def _try(self, name: str, part: Callable[[], object]) -> BaseException | None:
        """Run a part of the end; returns the interrupt that came meanwhile."""
        try:
            part()
        except Exception as error:
            self._fault(name, error)
        except BaseException as interrupt:
            return interrupt
        return None

    def _last(self) -> list[Last]:
        """The last tasks in the background, in this order."""
        return [
            ("control", lambda: self._control_follower.close() if self._control_follower is not None else None),
            ("trace", self._window_recorder.close),
            ("initial state", lambda: self._initial_states.close() if self._initial_states is not None else None),
            ("ranks", lambda: self._publisher.close() if self._publisher is not None else None),
            ("checking", lambda: self._checker.save() if self._checker is not None else None),
            ("session", functools.partial(self._write_note, ended=True)),
        ]

    def _finish(self) -> None:
        reason = self._pipeline.close()
        if reason:
            self._give_up(reason)

    def _give_up(self, reason: str) -> None:
        """End without the remaining work, and report it, also in the note if the disk allows."""
        self._faults.append(f"session: {reason}")
        log_warning(reason)
        with suppress(RuntimeError):  # no more threads
            background(lambda: self._write_note(ended=True), "traincheck-note").join(NOTE_SECONDS)

    def detach(self) -> None:
        """Remove every hook; the recording so far stays."""
        self.running = False
        with suppress(Exception):  # an earlier error is being raised, perhaps before the pipeline exists
            self._undo.close()
            self._pipeline.give_up()

    def pause(self) -> None:
        """Pause the thread: the process is about to fork."""
        self._pipeline.rest()

    def resume(self) -> None:
        """Resume after the fork."""
        self._forks += 1
        with suppress(RuntimeError):  # no more threads now; the next window tries again
            self._pipeline.start()

    def forked(self) -> None:
        """Stop in a forked child (a data loader worker), which has no threads and shares the parent's files."""
        self.running = False
        self.recorder.deactivate()

    # -- control ----------------------------------------------------------------------------------

    def _attach_control(self, attached: Attachment) -> None:
        """Connect the control file and the burst recorder, see Note [Two threads] in control.py."""
        from traincheck.runtime.session_listener import BurstListener, WindowListener

        recorder, settings, state = self.recorder, self.settings, self._state
        self._burst_recorder: BurstRecorder | None = None
        if settings.mode == "run":  # a collection records everything anyway
            self._burst_recorder = burst_recorder = BurstRecorder(
                attached, recorder, state, settings.record_after_finding, self.sampling.closer
            )
            recorder.add_listener(BurstListener(self, burst_recorder.at_rest, self._fault))
        publisher, checker = self._publisher, self._checker
        react = self._react
        orders = ControlActions(
            recorder, self._burst_recorder, self._before_update, checker, publisher, react, self.sampling
        )
        self._control_follower = ControlFollower(self._folder, self._process, lambda: self._rank_info, orders, state)
        recorder.add_listener(WindowListener(self, self.sampling.took, self._at_border, self._fault))

    def _at_border(self, cut: Cut) -> None:
        self._state.step, self._state.training = cut.step, True
        if self._control_follower is not None:
            self._control_follower.at_border()
        if self._burst_recorder is not None:
            self._burst_recorder.at_border(cut.step, cut.stage)

    def _record_stop(self) -> None:
        with suppress(Exception):  # the folder may be deleted or the disk full; StopTraining follows anyway
            self._folder.update(stopped_by_us=True)

    def _snapshot(self) -> None:
        snapshot(self._folder.path, self._catalog, self._state, self.recorder.steps.window_step, self._rank_info.rank)

    # -- events -----------------------------------------------------------------------------------

    def _read_configuration(self) -> RunConfiguration:
        """Read the configuration of the process on the training thread."""
        from traincheck.sources.recording.run_configuration import read_configuration

        try:
            return read_configuration()
        except Exception as error:  # of an object in sys.modules that is no module, for example
            self._fault("configuration", error, "comparisons of this run do not show its configuration")
            return RunConfiguration()

    def _find_rank(self) -> int:
        """The rank of this process; called at the end of a window, by when the rank is known."""
        if not self._current_rank.settled:
            with self._noting:  # the heartbeat may be writing a note
                moved = self._current_rank.settle()
            if moved:
                self._write_note(ended=False)
        return self._rank_info.rank

    @property
    def _rank_info(self) -> RankInfo:
        return self._current_rank.info

    def _window(self, window: Window) -> None:
        if self._configuration is None and window.step:
            self._configuration = self._read_configuration()
        self._window_recorder.window_closed(
            window, is_burst=self._burst_recorder is not None and self._burst_recorder.is_recording
        )
        dropped = self._pipeline.dropped
        self._pipeline.put(window)
        if self._pipeline.dropped != dropped:
            self.recorder.sampling_gate.reset_sources()

    def _records_all(self) -> bool:
        """Whether to record every window: `traincheck run` may compare the files of ranks."""
        publisher = self._publisher
        return self.settings.record == ALL or (publisher is not None and publisher.compares_by_files(self._rank_info))

    def _on_new_finding(self, finding: Finding) -> None:
        self._react(finding)
        if self._show is not None:
            try:
                self._show(finding)
            except Exception as error:  # a stderr of the program's own, say
                self._show = None
                self._fault("terminal", error, "findings are no longer printed; the report has them")

    def _react(self, finding: Finding) -> None:
        """React to a finding of this process or of several ranks."""
        self._window_recorder.record_around()
        if finding.severity != ERROR:
            return
        self._window_recorder.keep_file()
        if self._burst_recorder is not None:
            self._burst_recorder.violated(finding.invariants)
        if self._snapshot_due:
            self._snapshot_due = False
            self._before_update.request_snapshot()
        if self.settings.on_violation == "stop":
            self._before_update.stop(StopRequest(title=finding.title, step=finding.step))
        elif self.settings.on_violation == "callback":
            self._before_update.report(finding)

    def _on_rank_finding(self, finding: Finding) -> None:
        self._on_new_finding(finding)
        request = self._before_update.request
        if request is not None and self._publisher is not None:
            self._publisher.request_stop(request)

    def _stop_for(self, request: StopRequest) -> None:
        """Stop on request of rank 0."""
        if self.settings.on_violation == "stop":
            self._before_update.stop(request)

    def _may_step(self) -> None:
        """Called before each optimizer step on the training thread: the only place that raises, on request."""
        if self.running:
            self._before_update()

    def _fault(self, source: str, error: BaseException, consequence: str = "this part is no longer observed") -> None:
        """Log an error of a source or a stage, which is disabled. Raises nothing."""
        message = f"{source}: {in_words(error)}"
        self._faults.append(message)
        self._pipeline.say(f"{message} (the training goes on; {consequence})")
        if os.environ.get("TRAINCHECK_DEBUG"):
            traceback.print_exception(type(error), error, error.__traceback__)

    def _save_state(self) -> None:
        """Save the state and the results so far, for `traincheck watch`. Raises OutputError."""
        with self._noting:
            if self._ended:
                return
            self._folder.write_note(self._note(ended=False))  # first, as it does not recreate a deleted folder
        if self._checker is not None and self._checker.engine.outcome.windows:
            self._checker.save()

    def _write_note(self, *, ended: bool) -> None:
        try:
            with self._noting:  # the rank client and the heartbeat have threads of their own
                self._ended = ended
                self._folder.write_note(self._note(ended=ended))
        except TrainCheckError as error:
            log_warning(str(error))

    def _note(self, *, ended: bool) -> ProcessNote:
        import torch

        return ProcessNote(
            rank=self._rank_info.rank,
            process=self._process,
            world_size=self._rank_info.world_size,
            job=self._rank_info.job,
            exchange=self._publisher is not None and self._publisher.exchanging,
            torch=str(torch.__version__),
            python=platform.python_version(),
            configuration=self._configuration,
            windows=self._pipeline.closed,
            dropped=self._pipeline.dropped + self.recorder.dropped_windows,
            left_out=self._window_recorder.skipped_steps,
            **self.recorder.steps.counts(self._pipeline.steps),
            watched=self.recorder.watched_steps,
            seconds=time.monotonic() - self._began,
            not_observed=tuple(self._missing + self._faults + self.recorder.unobservable),
            cost=self.recorder.meter.seconds(),
            background=dict(self._pipeline.seconds),
            **self.recorder.meter.hashing(),
            sent=self._publisher.sent if self._publisher is not None else {},
            full=tuple(self._state.full),
            verified=self._verified.rows,
            forks=self._forks,
            ended=ended,
        )


def _log_save_error(error: Exception) -> None:
    log_warning(f"`traincheck watch` cannot see this process for now: {error} (the training goes on)")
