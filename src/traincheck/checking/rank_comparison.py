"""Ranks: what the processes of a job say together, from their recordings or from the files that they are writing.

Note [Live over ranks]
Under `traincheck run` each process checks its own windows. What concerns several ranks is compared by the process that
started them: it reads what they write into their run folder, step by step in the order of the run, so that the ranks
exchange no message of ours, wait for nobody and cannot be hurt. It reads what they tell (see checking/digests.py), and
their events only where that differs. A rank that lags behind is waited for, and of each rank no more than two steps are
held; where one has died, what the others go on to write stays in their files. Offline the same is done with files that
have ended, so the findings are the same.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain

from traincheck.checking.digests import full, lean
from traincheck.checking.engine import Outcome
from traincheck.checking.notifier import Teller
from traincheck.checking.outcome_files import save_followed
from traincheck.checking.rank_engine import Compared, RankEngine, comparable, not_compared, told_demand
from traincheck.errors import OutputError, TrainCheckError
from traincheck.trace.alignment import aligned
from traincheck.trace.control_file import ControlFile
from traincheck.trace.folder import Job, RunFolder, told_file
from traincheck.vocab.demand import Demand
from traincheck.vocab.events import Window
from traincheck.vocab.finding import Finding
from traincheck.vocab.invariant import Invariant

PAUSE = 0.5
"""Seconds between two looks for jobs that have begun."""

PATIENCE = 120.0
"""Seconds that the end of a run waits for what its ranks have written to be compared."""


def compare_recorded(run: RunFolder, deployed: Sequence[Sequence[Invariant]]) -> list[list[Compared]]:
    """For each set of rules: what it says of the ranks of each job of a recorded run."""
    from traincheck.trace.reader import read_windows  # here and below: it takes a while, and one rank has no use for it

    found: list[list[Compared]] = [[] for _ in deployed]
    demand = told_demand(chain.from_iterable(deployed))
    for job in run.jobs():
        held = _Held(demand)
        streams = {rank: _Stream(held.told(read_windows(file))) for rank, file in sorted(job.files.items())}
        ranks = RankEngine(deployed, held.in_full)
        for windows in aligned(list(streams.values())):
            ranks.feed(windows)
            held.release(windows)
        for engine, of_book in zip(ranks.engines, found, strict=True):
            of_book.append(Compared(engine.outcome, _left_out(job, streams, ranks), job.name))
    return found


class Follower:
    """Compares the ranks of each job in a run folder while they train, on threads of this process.

    `on_finding` is called once for each new finding, on one of these threads, by one at a time. Open it around the run;
    `compared` holds the result afterwards. Nothing is raised: what goes wrong is told as not compared.
    """

    def __init__(
        self,
        run: RunFolder,
        rules: Sequence[Invariant],
        on_finding: Callable[[Finding], None],
        pause: float = PAUSE,
    ) -> None:
        self.compared: list[Compared] = []
        self._run = run
        self._rules = comparable(rules)
        self._on_finding = on_finding
        self._pause = pause
        self._over = threading.Event()
        self._gone = threading.Event()
        self._lock = threading.Lock()
        self._followed: dict[str, threading.Thread] = {}
        self._faults: list[str] = []
        self._control = ControlFile(run.path)
        self._muted: Mapping[str, str] = {}
        self._watch = threading.Thread(target=self._look_out, name="traincheck-ranks", daemon=True)

    def __enter__(self) -> Follower:
        if self._rules:
            self._watch.start()
        return self

    def __exit__(self, *ended: object) -> None:
        """Compare what is left, and end."""
        if not self._rules:
            return
        self._over.set()
        self._watch.join(PATIENCE)
        late = self._watch.is_alive()
        self._gone.set()
        if late:
            self._faults.append(f"the ranks were not compared to the end: that took longer than {PATIENCE:.0f} s")
        with self._lock:
            if self._faults:
                self.compared.append(Compared(Outcome(), tuple(self._faults)))

    def _look_out(self) -> None:
        while True:
            last = self._over.is_set()  # asked first: what was written until then is followed
            try:
                for job in self._run.jobs():
                    if job.exchange:
                        continue  # its ranks compare themselves
                    if job.name not in self._followed and (last or len(job.files) == job.size):
                        self._follow(job)
            except TrainCheckError as error:
                with self._lock:
                    self._faults.append(f"ranks were not compared: {error}")
                break
            if last:
                break
            self._look_for_mutes()
            self._over.wait(self._pause)
        for thread in self._followed.values():
            thread.join(PATIENCE)

    def _look_for_mutes(self) -> None:
        with suppress(TrainCheckError):  # the processes that train say so
            control = self._control.news()
            if control is not None:
                self._muted = control.muted

    def _follow(self, job: Job) -> None:
        thread = threading.Thread(target=self._compare, args=(job,), name=f"traincheck-ranks-{job.name}", daemon=True)
        self._followed[job.name] = thread
        thread.start()

    def _compare(self, job: Job) -> None:
        files = _Files(job, told_demand(self._rules), self._over.is_set, self._pause)
        ranks, teller = RankEngine([self._rules], files.in_full), Teller(self._tell)
        (engine,) = ranks.engines
        streams = {rank: _Stream(files.told(rank)) for rank in sorted(job.files)}
        faults: tuple[str, ...] = ()
        muted: Mapping[str, str] = {}
        try:
            for windows in aligned(list(streams.values())):
                if self._gone.is_set():
                    break
                if muted is not self._muted:
                    muted = self._muted
                    ranks.mute(muted)
                (violations,) = ranks.feed(windows)
                if teller.feed(violations, engine.outcome.violations):
                    self._save(job, Compared(engine.outcome, (), job.name))
        except Exception as error:  # a thread of ours must not end without a word
            faults = (f"ranks were compared up to step {ranks.steps} only: {type(error).__name__}: {error}",)
        with self._lock:
            reasons = faults or _left_out(job, streams, ranks)
            self.compared.append(Compared(engine.outcome, reasons, job.name))
        self._save(job, Compared(engine.outcome, reasons, job.name))

    def _save(self, job: Job, compared: Compared) -> None:
        """For those who look from outside; what is reported at the end does not come from there."""
        with suppress(OutputError):
            save_followed(self._run.path, list(self._followed).index(job.name), compared)

    def _tell(self, finding: Finding) -> None:
        with self._lock:
            self._on_finding(finding)


class _Held:
    """The windows of recordings that are read in full: what is told of them, and they themselves until released."""

    def __init__(self, demand: Demand) -> None:
        self._demand = demand
        self._windows: dict[int, dict[int, Window]] = {}

    def told(self, windows: Iterable[Window]) -> Iterator[Window]:
        for window in windows:
            self._windows.setdefault(window.rank, {})[window.index] = window
            yield lean(window, self._demand)

    def in_full(self, windows: Sequence[Window]) -> list[Window]:
        return [full(self._windows[window.rank][window.index], self._demand) for window in windows]

    def release(self, windows: Sequence[Window]) -> None:
        """These, and those before them, are not asked for any more."""
        for window in windows:
            held = self._windows[window.rank]
            for index in [index for index in held if index <= window.index]:
                del held[index]


class _Files:
    """The files that the ranks of a job are writing: what each tells, and its events, read when they are asked for."""

    def __init__(self, job: Job, demand: Demand, ended: Callable[[], bool], pause: float) -> None:
        self._job = job
        self._demand = demand
        self._ended = ended
        self._pause = pause
        self._events: dict[int, Iterator[Window]] = {}
        self._asked: dict[int, int] = {}
        self._ahead: dict[int, Window] = {}

    def told(self, rank: int) -> Iterator[Window]:
        """What a rank tells; where it left nothing of that kind, what its events say."""
        from traincheck.trace.reader import follow_windows

        events = self._job.files[rank]
        told = told_file(events)
        while not told.exists() and not self._ended():
            time.sleep(self._pause)
        if told.exists():
            yield from follow_windows(told, self._ended, self._pause)
        else:
            yield from (lean(window, self._demand) for window in follow_windows(events, self._ended, self._pause))

    def in_full(self, windows: Sequence[Window]) -> list[Window | None]:
        found = [self._at(window.rank, window.index) for window in windows]
        return [None if window is None else full(window, self._demand) for window in found]

    def _at(self, rank: int, index: int) -> Window | None:
        """The window of this index, None where it was removed from the recording before it was asked for."""
        from traincheck.trace.reader import follow_windows

        self._asked[rank] = index
        if rank not in self._events:
            self._events[rank] = follow_windows(
                self._job.files[rank], self._ended, self._pause, lambda found: found >= self._asked[rank]
            )
        ahead = self._ahead.pop(rank, None)
        found = ahead if ahead is not None and ahead.index >= index else next(self._events[rank], None)
        if found is None or found.index != index:
            if found is not None:
                self._ahead[rank] = found
            return None
        return found


class _Stream:
    """What one rank tells; remembers how far it went."""

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
    return not_compared(job.name, job.size, last_steps, ended, ranks.steps) + ranks.classes.not_compared()
