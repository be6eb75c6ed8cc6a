"""The status of a run as seen from outside while it goes on."""

from __future__ import annotations

from dataclasses import dataclass

WAITING, GOING, ENDED, KILLED, DELETED = "waiting", "going on", "ended", "killed", "deleted"
"""States of a run. `waiting`: its folder does not exist yet, or is empty. `killed`: all of its processes have missed
their heartbeats for so long that none is expected."""

STARTING, TRAINING, RESTING, SILENT = "starting", "training", "at rest", "silent"
"""States of a rank, apart from `ended` and `killed`. `at rest`: its process lives, and no window has come for long (a
long evaluation, a checkpoint, a hang). `silent`: it has missed its heartbeats for long."""

SILENT_AFTER = 60.0
"""Seconds without a heartbeat after which a rank is reported: twice the slowest heartbeat."""


@dataclass(frozen=True, slots=True)
class RankStatus:
    """The status of a rank. `windows` counts those that it closed, `dropped` those of them that were left out.

    `steps_per_second` covers the last seconds, `cost` is the seconds that observing took for each second; both are None
    if unknown. `silent` counts the seconds since the last heartbeat of its process, `resting` those since its last
    window.
    """

    rank: int
    process: int
    job: str
    state: str
    steps: int
    windows: int
    dropped: int
    steps_per_second: float | None
    cost: float | None
    silent: float
    resting: float


@dataclass(frozen=True, slots=True)
class RunStatus:
    """The status of a run. `rules` counts those that are checked on it, `checked` those of them that have been
    triggered so far.

    A run that is only recorded (`mode` is `collect`) has neither. `run` is the id of the run, `unread` lists what could
    not be read, with the reasons.
    """

    folder: str
    state: str = WAITING
    script: str = ""
    mode: str = ""
    exit_code: int | None = None
    stopped: bool = False
    rules: int = 0
    checked: int = 0
    errors: int = 0
    notices: int = 0
    ranks: tuple[RankStatus, ...] = ()
    unread: tuple[str, ...] = ()
    run: str = ""

    @property
    def over(self) -> bool:
        """Whether the run is finished."""
        return self.state in (ENDED, KILLED, DELETED)

    @property
    def steps(self) -> int:
        """The last training step that any rank has finished."""
        return max((rank.steps for rank in self.ranks), default=0)

    @property
    def steps_per_second(self) -> float | None:
        """The rate of the slowest rank that trains."""
        return min((rank.steps_per_second for rank in self.ranks if rank.steps_per_second is not None), default=None)

    @property
    def dropped(self) -> int:
        """The windows that were left out, of all ranks."""
        return sum(rank.dropped for rank in self.ranks)

    @property
    def cost(self) -> float | None:
        """The cost on the rank for which observing is most expensive."""
        return max((rank.cost for rank in self.ranks if rank.cost is not None), default=None)

    @property
    def silent(self) -> tuple[RankStatus, ...]:
        """The ranks whose processes have missed their heartbeats for long."""
        return tuple(rank for rank in self.ranks if rank.state == SILENT)
