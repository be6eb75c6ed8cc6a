"""Pulses: when each process of a run last gave a sign of life, and how fast it goes on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from traincheck.trace.run_notes import ProcessNote
from traincheck.vocab.finding import ELSEWHERE, GOING, MISSING, RankState
from traincheck.vocab.run_status import ENDED, KILLED, RESTING, SILENT, STARTING, TRAINING, RankStatus

MEETING = 30.0
"""Seconds for which a process is watched before it is held for silent: the clock of its host may be another than ours,
so that its note looks older than it is; one that lives writes another note in that time."""

LEAST_SPAN = 1.0
"""Seconds between two notes from which a speed is told; of two that follow at once it would jump."""


@dataclass
class Pulse:
    """One process: its last `note`, and the one that its speed is told from. `met` is when it was first seen, `sign`
    when it last gave a sign of life, and `grown` when its windows were last seen to grow, by our own clock.
    """

    note: ProcessNote
    met: float
    sign: float
    grown: float
    before: ProcessNote
    steps_per_second: float | None = None

    @classmethod
    def of(cls, note: ProcessNote, now: float, age: float) -> Pulse:
        """That of a process whose note is seen for the first time, and seems to have been written `age` seconds ago."""
        speed = note.steps / note.seconds if note.seconds >= LEAST_SPAN else None
        return cls(note, now, now - age, now, note, speed)

    def beat(self, note: ProcessNote, when: float) -> None:
        """The process wrote another note."""
        if note.windows != self.note.windows:
            self.grown = when
        self.sign = when
        self.note = note
        span = note.seconds - self.before.seconds
        if span >= LEAST_SPAN:
            self.steps_per_second = (note.steps - self.before.steps) / span
            self.before = note

    def quiet(self, now: float, long: float) -> bool:
        """Whether it has given no sign of life for `long` seconds, as far as that is certain."""
        return now - self.sign > long and now - self.met > min(long, MEETING)

    def state(self, now: float, long: float, over: bool) -> str:
        """How the process fares at `now`, where `long` seconds without a sign are long, and the run may be over."""
        if self.note.ended:
            return ENDED
        if over:
            return KILLED
        if self.quiet(now, long):
            return SILENT
        if self.note.steps == 0:
            return STARTING
        return RESTING if now - self.grown > long else TRAINING

    def status(self, now: float, long: float, over: bool) -> RankStatus:
        """How the process fares at `now`."""
        note, state = self.note, self.state(now, long, over)
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
            silent=0.0 if note.ended else max(0.0, now - self.sign),
            resting=0.0 if note.ended else max(0.0, now - self.grown),
        )


def states_of(pulses: Iterable[Pulse], over: bool) -> tuple[RankState, ...]:
    """How the ranks of jobs fare by what their processes say, for a report while the run goes on.

    What a process says is some seconds old; how far it came is known exactly by its recording, which may be large.
    """
    jobs: dict[str, dict[int, ProcessNote]] = {}
    for pulse in pulses:
        if pulse.note.world_size > 1:
            jobs.setdefault(pulse.note.job, {})[pulse.note.rank] = pulse.note
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


def of_ranks(pulses: Mapping[tuple[int, int], Pulse], now: float, long: float) -> list[Pulse]:
    """The processes that train, by rank.

    Left out are launchers and workers of data loaders, which take no step; and a process that is silent where another
    one has its rank since: an elastic job was started again.
    """
    several = any(pulse.note.world_size > 1 for pulse in pulses.values())
    by_rank: dict[int, list[Pulse]] = {}
    for (rank, _), pulse in sorted(pulses.items()):
        if pulse.note.world_size > 1 or pulse.note.steps or not several:
            by_rank.setdefault(rank, []).append(pulse)
    return [pulse for those in by_rank.values() for pulse in those if _counts(pulse, those, now, long)]


def _counts(pulse: Pulse, those: Iterable[Pulse], now: float, long: float) -> bool:
    others = [other for other in those if other is not pulse]
    if not pulse.note.steps and any(other.note.steps and other.note.job == pulse.note.job for other in others):
        return False
    if pulse.state(now, long, over=False) != SILENT:
        return True
    return not any(
        other.sign > pulse.sign and (other.note.steps or other.note.job != pulse.note.job) for other in others
    )
