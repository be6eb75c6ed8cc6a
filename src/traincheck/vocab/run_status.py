"""Status: how a run looks from outside while it goes on."""

from __future__ import annotations

from dataclasses import dataclass

WAITING, GOING, ENDED, KILLED, DELETED = "waiting", "going on", "ended", "killed", "deleted"
"""States of a run. `waiting`: its folder is not there yet, or holds nothing. `killed`: all of its processes have given
no sign of life for so long that none is to be expected."""

STARTING, TRAINING, RESTING, SILENT = "starting", "training", "at rest", "silent"
"""States of a rank, besides `ended` and `killed`. `at rest`: its process lives, and no window has come for long (a long
evaluation, a checkpoint, a hang); `silent`: it has given no sign of life for long."""

SILENT_AFTER = 60.0
"""Seconds without a sign of life that are worth a word: twice the slowest heartbeat."""


@dataclass(frozen=True, slots=True)
class RankStatus:
    """How a rank fares. `windows` counts those that it closed, `dropped` those of them that were left out.

    `steps_per_second` is that of the last seconds, `cost` the seconds that observing took for each second that passed;
    both are None where nothing tells. `silent` counts the seconds since the last sign of life of its process, `resting`
    those since its last window.
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
    """How a run fares. `rules` are those that are checked on it, `checked` those of them that have come up so far.

    A run that is recorded only (`mode` is `collect`) has neither. `run` is the id of the run, `unread` tells what could
    not be read, and why.
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
        """Whether nothing more is to be expected of the run."""
        return self.state in (ENDED, KILLED, DELETED)

    @property
    def steps(self) -> int:
        """The last training step that any rank has finished."""
        return max((rank.steps for rank in self.ranks), default=0)

    @property
    def steps_per_second(self) -> float | None:
        """That of the slowest rank that trains."""
        return min((rank.steps_per_second for rank in self.ranks if rank.steps_per_second is not None), default=None)

    @property
    def dropped(self) -> int:
        """Windows that were left out, of all ranks."""
        return sum(rank.dropped for rank in self.ranks)

    @property
    def cost(self) -> float | None:
        """That of the rank for which observing costs most."""
        return max((rank.cost for rank in self.ranks if rank.cost is not None), default=None)

    @property
    def silent(self) -> tuple[RankStatus, ...]:
        """The ranks whose processes have given no sign of life for long."""
        return tuple(rank for rank in self.ranks if rank.state == SILENT)
