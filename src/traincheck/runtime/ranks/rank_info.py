"""Place: which rank of which job a process is, as far as it is known by now."""

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
"""What launchers set alike in all processes that train together, and otherwise in those of another attempt."""


def is_running(process: int) -> bool:
    """Whether there is a process of this number on this host, as far as that can be asked."""
    if os.name != "posix":
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True  # it is somebody else's
    return True


class Place(NamedTuple):
    """The rank of a process, how many there are, and the name of the job that they are of (see `ProcessNote`)."""

    rank: int
    world_size: int
    job: str


def rank_info_of(environ: Mapping[str, str]) -> Place:
    """What torch.distributed says where it is initialised (a program may start its ranks by itself), or the launcher's
    variables; a job of one where neither says anything. Does not import torch."""
    rank, size = _number(environ, "RANK", 0), _number(environ, "WORLD_SIZE", 1)
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        rank, size = distributed.get_rank(), distributed.get_world_size()
    return Place(rank, size, "-".join(environ[name] for name in JOB_VARIABLES if environ.get(name)))


def told_apart(found: Place, others: Sequence[ProcessNote], runs: Callable[[int], bool] = is_running) -> Place:
    """`found`, with another name for its job where one of that name is over: `others` trained as the same rank.

    Jobs that a script or a program starts one after the other may be alike in all that launchers set. A process whose
    rank trains at this moment is a worker of that one. Known limitations: jobs that nothing tells apart while both of
    them run are taken for one.
    """
    name, number = found.job, 1
    while any(note.job == name for note in others) and not any(
        note.job == name and not note.ended and runs(note.process) for note in others
    ):
        number += 1
        name = f"{found.job}#{number}"
    return found._replace(job=name)


def _number(environ: Mapping[str, str], name: str, default: int) -> int:
    told = environ.get(name, "")
    return int(told) if told.isdigit() else default


def here() -> Place:
    """The place of this process."""
    return rank_info_of(os.environ)


class Standing:
    """The place of this process among those that left recordings in the run folder before. It is `settled` from the end
    of its first window on: where there are ranks, they are known by then."""

    def __init__(self, folder: RunFolder, process: int) -> None:
        self._folder = folder
        self._process = process
        self._told = here()
        self.place = self._among_others()
        self.settled = False

    def settle(self) -> bool:
        """Find out for good; whether it is another place than it was, whose note is taken back then."""
        self.settled = True
        before, self._told = self._told, here()
        if before == self._told:
            return False
        self._folder.withdraw_note(before.rank, self._process)
        self.place = self._among_others()
        return True

    def _among_others(self) -> Place:
        if self._told.world_size < 2:
            return self._told
        try:
            return told_apart(self._told, self._folder.trained_as(self._told.rank, self._process))
        except TrainCheckError:  # a folder that was deleted; the writer will say so
            return self._told
