"""Compares the ranks of a job, from their recordings or from the files that they are writing.

Note [Live over ranks]
Under `traincheck run` each process checks its own windows. The command that started them compares the ranks: it
reads the files in the run folder, step by step in the order of the run. So the ranks exchange no messages for
TrainCheck, and never wait. The command reads the published digests (see checking/digests.py), and the events only where
digests differ. It waits for a slow rank, and holds at most two steps of each rank. If a rank dies, the later steps of
the others stay in their files. Offline, the same code reads complete files, so the findings are the same.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain

from traincheck.checking.digests import RecordedValues, lean
from traincheck.checking.engine import Outcome
from traincheck.checking.notifier import Notifier
from traincheck.checking.outcome_files import save_followed
from traincheck.checking.rank_engine import RankComparison, RankEngine, comparable, not_compared, published_demand
from traincheck.errors import OutputError, TrainCheckError
from traincheck.trace.alignment import aligned
from traincheck.trace.control_file import ControlFile
from traincheck.trace.folder import Job, RunFolder, digest_file
from traincheck.vocab.demand import Demand
from traincheck.vocab.events import Window
from traincheck.vocab.finding import Finding
from traincheck.vocab.invariant import Invariant

PAUSE = 0.5
"""Seconds between two searches for new jobs."""

PATIENCE = 120.0
"""Seconds that the end of a run waits for the comparison of its ranks."""


def compare_recorded(run: RunFolder, deployed: Sequence[Sequence[Invariant]]) -> list[list[RankComparison]]:
    """For each set of rules: the comparison of the ranks of each job of a recorded run."""
    from traincheck.trace.reader import read_windows  # here and below: slow to import, and one rank does not need it

    comparisons: list[list[RankComparison]] = [[] for _ in deployed]
    demand = published_demand(chain.from_iterable(deployed))
    for job in run.jobs():
        windows_read = _FullWindows(demand)
        streams = {rank: _Stream(windows_read.lean(read_windows(file))) for rank, file in sorted(job.files.items())}
        ranks = RankEngine(deployed, RecordedValues(windows_read.recorded))
        for windows in aligned(list(streams.values())):
            ranks.feed(windows)
            windows_read.release(windows)
        for engine, of_book in zip(ranks.engines, comparisons, strict=True):
            of_book.append(RankComparison(engine.outcome, _left_out(job, streams, ranks), job.name))
    return comparisons


class Follower:
    """Compares the ranks of each job in a run folder while they train, on threads of this process.

    `on_finding` is called once for each new finding, by one of these threads at a time. Use it as a context manager
    around the run; `comparisons` holds the result afterwards. It raises nothing: faults are reported as not compared.
    """

    def __init__(
        self,
        run: RunFolder,
        rules: Sequence[Invariant],
        on_finding: Callable[[Finding], None],
        pause: float = PAUSE,
    ) -> None:
        self.comparisons: list[RankComparison] = []
        self._run = run
        self._rules = comparable(rules)
        self._on_finding = on_finding
        self._pause = pause
        self._over = threading.Event()
        self._abandoned = threading.Event()
        self._lock = threading.Lock()
        self._threads: dict[str, threading.Thread] = {}
        self._faults: list[str] = []
        self._control = ControlFile(run.path)
        self._muted: Mapping[str, str] = {}
        self._search = threading.Thread(target=self._search_jobs, name="traincheck-ranks", daemon=True)

    def __enter__(self) -> Follower:
        if self._rules:
            self._search.start()
        return self

    def __exit__(self, *ended: object) -> None:
        """Compare the rest, and end."""
        if not self._rules:
            return
        self._over.set()
        self._search.join(PATIENCE)
        late = self._search.is_alive()
        self._abandoned.set()
        if late:
            self._faults.append(f"the ranks were not compared to the end: that took longer than {PATIENCE:.0f} s")
        with self._lock:
            if self._faults:
                self.comparisons.append(RankComparison(Outcome(), tuple(self._faults)))

    def _search_jobs(self) -> None:
        while True:
            last = self._over.is_set()  # read first, so that jobs that began before the end are followed
            try:
                for job in self._run.jobs():
                    if job.exchange:
                        continue  # rank 0 of this job compares its ranks
                    if job.name not in self._threads and (last or len(job.files) == job.size):
                        self._follow(job)
            except TrainCheckError as error:
                with self._lock:
                    self._faults.append(f"ranks were not compared: {error}")
                break
            if last:
                break
            self._read_mutes()
            self._over.wait(self._pause)
        for thread in self._threads.values():
            thread.join(PATIENCE)

    def _read_mutes(self) -> None:
        with suppress(TrainCheckError):  # the training processes report it
            control = self._control.news()
            if control is not None:
                self._muted = control.muted

    def _follow(self, job: Job) -> None:
        thread = threading.Thread(target=self._compare, args=(job,), name=f"traincheck-ranks-{job.name}", daemon=True)
        self._threads[job.name] = thread
        thread.start()

    def _compare(self, job: Job) -> None:
        files = _Files(job, published_demand(self._rules), self._over.is_set, self._pause)
        ranks, notifier = RankEngine([self._rules], RecordedValues(files.recorded)), Notifier(self._notify)
        (engine,) = ranks.engines
        streams = {rank: _Stream(files.published(rank)) for rank in sorted(job.files)}
        faults: tuple[str, ...] = ()
        muted: Mapping[str, str] = {}
        try:
            for windows in aligned(list(streams.values())):
                if self._abandoned.is_set():
                    break
                if muted is not self._muted:
                    muted = self._muted
                    ranks.mute(muted)
                (violations,) = ranks.feed(windows)
                if notifier.feed(violations, engine.outcome.violations):
                    self._save(job, RankComparison(engine.outcome, (), job.name))
        except Exception as error:  # a thread must not end silently
            faults = (f"ranks were compared up to step {ranks.steps} only: {type(error).__name__}: {error}",)
        with self._lock:
            reasons = faults or _left_out(job, streams, ranks)
            self.comparisons.append(RankComparison(engine.outcome, reasons, job.name))
        self._save(job, RankComparison(engine.outcome, reasons, job.name))

    def _save(self, job: Job, comparison: RankComparison) -> None:
        """Save the comparison for `traincheck watch`; the report at the end does not use the file."""
        with suppress(OutputError):
            save_followed(self._run.path, list(self._threads).index(job.name), comparison)

    def _notify(self, finding: Finding) -> None:
        with self._lock:
            self._on_finding(finding)


class _FullWindows:
    """The windows of recordings: yields them lean, and keeps them in full until they are released."""

    def __init__(self, demand: Demand) -> None:
        self._demand = demand
        self._windows: dict[int, dict[int, Window]] = {}

    def lean(self, windows: Iterable[Window]) -> Iterator[Window]:
        for window in windows:
            self._windows.setdefault(window.rank, {})[window.index] = window
            yield lean(window, self._demand)

    def recorded(self, window: Window) -> Window:
        """The window in full."""
        return self._windows[window.rank][window.index]

    def release(self, windows: Sequence[Window]) -> None:
        """Drop these windows and earlier ones."""
        for window in windows:
            by_index = self._windows[window.rank]
            for index in [index for index in by_index if index <= window.index]:
                del by_index[index]


class _Files:
    """The files that the ranks of a job are writing: published windows, and events, which are read on demand."""

    def __init__(self, job: Job, demand: Demand, ended: Callable[[], bool], pause: float) -> None:
        self._job = job
        self._demand = demand
        self._ended = ended
        self._pause = pause
        self._events: dict[int, Iterator[Window]] = {}
        self._requested: dict[int, int] = {}
        self._ahead: dict[int, Window] = {}
        self._last: dict[int, Window | None] = {}

    def published(self, rank: int) -> Iterator[Window]:
        """The published windows of a rank, or lean windows from its events if it published none."""
        from traincheck.trace.reader import follow_windows

        events = self._job.files[rank]
        published = digest_file(events)
        while not published.exists() and not self._ended():
            time.sleep(self._pause)
        if published.exists():
            yield from follow_windows(published, self._ended, self._pause)
        else:
            yield from (lean(window, self._demand) for window in follow_windows(events, self._ended, self._pause))

    def recorded(self, window: Window) -> Window | None:
        """The window in full, None if it was removed from the recording already."""
        last = self._last.get(window.rank)
        if last is None or last.index != window.index:
            last = self._last[window.rank] = self._at(window.rank, window.index)
        return last

    def _at(self, rank: int, index: int) -> Window | None:
        from traincheck.trace.reader import follow_windows

        self._requested[rank] = index
        if rank not in self._events:
            self._events[rank] = follow_windows(
                self._job.files[rank], self._ended, self._pause, lambda newest: newest >= self._requested[rank]
            )
        ahead = self._ahead.pop(rank, None)
        window = ahead if ahead is not None and ahead.index >= index else next(self._events[rank], None)
        if window is None or window.index != index:
            if window is not None:
                self._ahead[rank] = window
            return None
        return window


class _Stream:
    """The windows of one rank, with the last step that was read."""

    def __init__(self, windows: Iterable[Window]) -> None:
        self._windows = windows
        self.last_step = 0
        self.exhausted = False

    def __iter__(self) -> Iterator[Window]:
        for window in self._windows:
            self.last_step = max(self.last_step, window.step)
            yield window
        self.exhausted = True


def _left_out(job: Job, streams: dict[int, _Stream], ranks: RankEngine) -> tuple[str, ...]:
    last_steps = {rank: stream.last_step for rank, stream in streams.items()}
    ended = [rank for rank, stream in streams.items() if stream.exhausted]
    return not_compared(job.name, range(job.size), last_steps, ended, ranks.steps) + ranks.classes.not_compared()
