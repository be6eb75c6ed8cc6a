"""Ranks: what the processes of a job say together, from their recordings or from the files that they are writing.

Note [Live over ranks]
Under `traincheck run` each process checks its own windows. What concerns several ranks is compared by the process that
started them: it reads the files that they write anyway, step by step in the order of the run, so that the ranks
exchange no message of ours, wait for nobody and cannot be hurt. A rank that lags behind is waited for, and of each rank
no more than two steps are held; where one has died, what the others go on to write stays in their files. Offline the
same loop runs over files that have ended, so the findings are the same.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from traincheck import plugins
from traincheck.checking.engine import Engine, Outcome
from traincheck.checking.findings import Teller
from traincheck.errors import TrainCheckError
from traincheck.relations.base import compares_ranks
from traincheck.trace.alignment import aligned
from traincheck.trace.folder import Job, RunFolder
from traincheck.trace.reader import follow_windows, read_windows
from traincheck.vocab.events import Window
from traincheck.vocab.finding import Finding
from traincheck.vocab.invariant import Invariant
from traincheck.vocab.ranks import named_ranks

PAUSE = 0.5
"""Seconds between two looks for jobs that have begun."""

PATIENCE = 120.0
"""Seconds that the end of a run waits for what its ranks have written to be compared."""


@dataclass(frozen=True)
class Compared:
    """What was found of the ranks of a job, and what could not be compared."""

    outcome: Outcome
    not_compared: tuple[str, ...] = ()
    job: str = ""


def comparable(rules: Iterable[Invariant]) -> list[Invariant]:
    """The rules that can speak of several ranks together."""
    classes = plugins.load("traincheck.relations")
    return [rule for rule in rules if rule.relation in classes and compares_ranks(classes[rule.relation])]


def compare_recorded(run: RunFolder, deployed: Sequence[Sequence[Invariant]]) -> list[list[Compared]]:
    """For each set of rules: what it says of the ranks of each job of a recorded run."""
    found: list[list[Compared]] = [[] for _ in deployed]
    for job in run.jobs():
        engines = [Engine(rules) for rules in deployed]
        streams = {rank: _Stream(read_windows(file)) for rank, file in sorted(job.files.items())}
        for windows in aligned(list(streams.values())):
            for engine in engines:
                engine.feed_ranks(windows)
        for engine, of_book in zip(engines, found, strict=True):
            of_book.append(Compared(engine.outcome, _not_compared(job, streams, engine.outcome.steps), job.name))
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
                    if job.name not in self._followed and (last or len(job.files) == job.size):
                        self._follow(job)
            except TrainCheckError as error:
                with self._lock:
                    self._faults.append(f"ranks were not compared: {error}")
                break
            if last:
                break
            self._over.wait(self._pause)
        for thread in self._followed.values():
            thread.join(PATIENCE)

    def _follow(self, job: Job) -> None:
        thread = threading.Thread(target=self._compare, args=(job,), name=f"traincheck-ranks-{job.name}", daemon=True)
        self._followed[job.name] = thread
        thread.start()

    def _compare(self, job: Job) -> None:
        engine, teller = Engine(self._rules), Teller(self._tell)
        streams = {
            rank: _Stream(follow_windows(file, self._over.is_set, self._pause))
            for rank, file in sorted(job.files.items())
        }
        faults: tuple[str, ...] = ()
        try:
            for windows in aligned(list(streams.values())):
                if self._gone.is_set():
                    break
                teller.feed(engine.feed_ranks(windows), engine.outcome.violations)
        except Exception as error:  # a thread of ours must not end without a word
            faults = (f"ranks were compared up to step {engine.outcome.steps} only: {type(error).__name__}: {error}",)
        with self._lock:
            reasons = faults or _not_compared(job, streams, engine.outcome.steps)
            self.compared.append(Compared(engine.outcome, reasons, job.name))

    def _tell(self, finding: Finding) -> None:
        with self._lock:
            self._on_finding(finding)


class _Stream:
    """The windows of one rank; remembers how far they went."""

    def __init__(self, windows: Iterable[Window]) -> None:
        self._windows = windows
        self.last_step = 0
        self.exhausted = False

    def __iter__(self) -> Iterator[Window]:
        for window in self._windows:
            self.last_step = max(self.last_step, window.step)
            yield window
        self.exhausted = True


def _not_compared(job: Job, streams: dict[int, _Stream], step: int) -> tuple[str, ...]:
    """What of a job could not be compared, and why."""
    named = f" of job {job.name}" if job.name else ""
    missing = sorted(set(range(job.size)) - set(streams))
    found = [f"{named_ranks(missing)}{named} left no recording"] if missing else []
    furthest = max(stream.last_step for stream in streams.values())
    short = sorted(rank for rank, stream in streams.items() if stream.exhausted and stream.last_step < furthest)
    if short and len(streams) > 1:
        ended = f"{named_ranks(short)} recorded no more, others went on"
        found.append(f"ranks{named} were compared up to step {step}: {ended}")
    return tuple(found)
