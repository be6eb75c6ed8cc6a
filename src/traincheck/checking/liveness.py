"""Tracks the heartbeats of the processes of a run: which are alive, and how fast they train."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from traincheck.trace.run_notes import ProcessNote
from traincheck.vocab.finding import ELSEWHERE, GOING, MISSING, RankState
from traincheck.vocab.run_status import ENDED, KILLED, RESTING, SILENT, STARTING, TRAINING, RankStatus

LEAST_WATCHED = 30.0
"""Seconds for which a process is watched before it counts as silent. The clock of its host may differ from ours, so its
note may look older than it is; a live process writes another note in this time."""

LEAST_SPAN = 1.0
"""Seconds between the two notes that give a speed; with less, the speed would jump."""


@dataclass
class Liveness:
    """One process: its last `note`, and the earlier note that gives its speed.

    By our own clock, `first_seen` is the time of its first note, `heartbeat` that of its last one, and `progress` the
    last time at which it had more windows.
    """

    note: ProcessNote
    first_seen: float
    heartbeat: float
    progress: float
    earlier: ProcessNote
    steps_per_second: float | None = None

    @classmethod
    def first(cls, note: ProcessNote, now: float, age: float) -> Liveness:
        """A process whose note is seen for the first time, and appears to be `age` seconds old."""
        speed = note.steps / note.seconds if note.seconds >= LEAST_SPAN else None
        return cls(note, now, now - age, now, note, speed)

    def beat(self, note: ProcessNote, when: float) -> None:
        """The process wrote another note."""
        if note.windows != self.note.windows:
            self.progress = when
        self.heartbeat = when
        self.note = note
        span = note.seconds - self.earlier.seconds
        if span >= LEAST_SPAN:
            self.steps_per_second = (note.steps - self.earlier.steps) / span
            self.earlier = note

    def is_silent(self, now: float, timeout: float) -> bool:
        """Whether it certainly had no heartbeat for `timeout` seconds."""
        return now - self.heartbeat > timeout and now - self.first_seen > min(timeout, LEAST_WATCHED)

    def state(self, now: float, timeout: float, over: bool) -> str:
        """The state at `now`. A process without a heartbeat for `timeout` seconds is silent.

        In a run that is `over`, a process whose note has no end was killed.
        """
        if self.note.ended:
            return ENDED
        if over:
            return KILLED
        if self.is_silent(now, timeout):
            return SILENT
        if self.note.steps == 0:
            return STARTING
        return RESTING if now - self.progress > timeout else TRAINING

    def status(self, now: float, timeout: float, over: bool) -> RankStatus:
        """The status at `now`, see `state`."""
        note, state = self.note, self.state(now, timeout, over)
        speed = self.steps_per_second if state in (TRAINING, RESTING) else None
        if state == ENDED and note.seconds:
            speed = note.steps / note.seconds
        return RankStatus(
            rank=note.rank,
            process=note.process,
            job=note.job,
            state=state,
            steps=note.steps,
            windows=note.windows,
            dropped=note.dropped,
            steps_per_second=speed,
            cost=sum(note.cost.values()) / note.seconds if note.seconds else None,
            silent=0.0 if note.ended else max(0.0, now - self.heartbeat),
            resting=0.0 if note.ended else max(0.0, now - self.progress),
        )


def rank_states_of(processes: Iterable[Liveness], over: bool) -> tuple[RankState, ...]:
    """The states of the ranks of jobs from the notes of their processes, for a report during the run.

    A note is some seconds old. The recording has the exact last step, but it may be large.
    """
    jobs: dict[str, dict[int, ProcessNote]] = {}
    for process in processes:
        if process.note.world_size > 1:
            jobs.setdefault(process.note.job, {})[process.note.rank] = process.note
    return tuple(
        _rank_state(job, rank, notes, over)
        for job, notes in sorted(jobs.items())
        for rank in range(max(note.world_size for note in notes.values()))
    )


def _rank_state(job: str, rank: int, notes: Mapping[int, ProcessNote], over: bool) -> RankState:
    note = notes.get(rank)
    if note is None:
        elsewhere = any(other.exchange for other in notes.values())
        return RankState(rank, job, ELSEWHERE if elsewhere else MISSING, 0, 0, 0)
    end = KILLED if over else GOING
    return RankState(rank, job, ENDED if note.ended else end, note.steps, note.windows, note.steps)


def training_processes(processes: Mapping[tuple[int, int], Liveness], now: float, timeout: float) -> list[Liveness]:
    """The processes that train, by rank.

    Launchers and data loader workers take no step, so they are left out. So is a silent process whose rank another
    process has since taken: an elastic job was started again.
    """
    several = any(process.note.world_size > 1 for process in processes.values())
    by_rank: dict[int, list[Liveness]] = {}
    for (rank, _), process in sorted(processes.items()):
        if process.note.world_size > 1 or process.note.steps or not several:
            by_rank.setdefault(rank, []).append(process)
    return [
        process for of_rank in by_rank.values() for process in of_rank if _is_current(process, of_rank, now, timeout)
    ]


def _is_current(process: Liveness, of_rank: Iterable[Liveness], now: float, timeout: float) -> bool:
    others = [other for other in of_rank if other is not process]
    if not process.note.steps and any(other.note.steps and other.note.job == process.note.job for other in others):
        return False
    if process.state(now, timeout, over=False) != SILENT:
        return True
    return not any(
        other.heartbeat > process.heartbeat and (other.note.steps or other.note.job != process.note.job)
        for other in others
    )
