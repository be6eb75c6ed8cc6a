"""Finds the rank, the world size and the job of this process."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from traincheck.errors import TrainCheckError
from traincheck.trace.folder import RunFolder
from traincheck.trace.run_notes import ProcessNote

JOB_VARIABLES = (
    "SLURM_JOB_ID",
    "SLURM_STEP_ID",
    "TORCHELASTIC_RUN_ID",
    "MASTER_ADDR",
    "MASTER_PORT",
    "TORCHELASTIC_RESTART_COUNT",
)
"""Variables that launchers set to the same values in all processes of a job, and to others in another attempt."""


def is_running(process: int) -> bool:
    """Whether a process with this number runs on this host; True where that is unknown."""
    if os.name != "posix":
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True  # it belongs to another user
    return True


class RankInfo(NamedTuple):
    """The rank of a process, the world size, and the name of the job (see `ProcessNote`)."""

    rank: int
    world_size: int
    job: str


def rank_info_of(environ: Mapping[str, str]) -> RankInfo:
    """The rank according to torch.distributed if it is initialised, else according to the launcher's variables.

    Without either it is a job of one. Does not import torch.
    """
    rank, size = _number(environ, "RANK", 0), _number(environ, "WORLD_SIZE", 1)
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        rank, size = distributed.get_rank(), distributed.get_world_size()
    return RankInfo(rank, size, "-".join(environ[name] for name in JOB_VARIABLES if environ.get(name)))


def with_distinct_job(
    info: RankInfo, others: Sequence[ProcessNote], runs: Callable[[int], bool] = is_running
) -> RankInfo:
    """`info`, with a new job name if a job of that name has ended. `others` are processes of the same rank.

    Jobs that a script starts one after the other may have the same variables. A process whose rank trains at this
    moment is a worker of that rank. Known limitations: two such jobs that run at the same time count as one.
    """
    name, number = info.job, 1
    while any(note.job == name for note in others) and not any(
        note.job == name and not note.ended and runs(note.process) for note in others
    ):
        number += 1
        name = f"{info.job}#{number}"
    return info._replace(job=name)


def _number(environ: Mapping[str, str], name: str, default: int) -> int:
    text = environ.get(name, "")
    return int(text) if text.isdigit() else default


def current_rank_info() -> RankInfo:
    """The rank of this process, as it is known now."""
    return rank_info_of(os.environ)


class CurrentRank:
    """The rank of this process, with a job name that differs from earlier jobs in the run folder.

    It is `settled` from the end of the first window on: by then torch.distributed knows the ranks.
    """

    def __init__(self, folder: RunFolder, process: int) -> None:
        self._folder = folder
        self._process = process
        self._launched = current_rank_info()
        self.info = self._distinct()
        self.settled = False

    def settle(self) -> bool:
        """Determine the rank for good; True if it has changed, in which case the old note is removed."""
        self.settled = True
        before, self._launched = self._launched, current_rank_info()
        if before == self._launched:
            return False
        self._folder.withdraw_note(before.rank, self._process)
        self.info = self._distinct()
        return True

    def _distinct(self) -> RankInfo:
        if self._launched.world_size < 2:
            return self._launched
        try:
            return with_distinct_job(self._launched, self._folder.trained_as(self._launched.rank, self._process))
        except TrainCheckError:  # the folder was deleted, which the writer reports
            return self._launched
