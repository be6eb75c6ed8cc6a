"""Place: which rank of which job a process is, as far as it is known by now."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import NamedTuple

JOB_VARIABLES = (
    "SLURM_JOB_ID",
    "SLURM_STEP_ID",
    "TORCHELASTIC_RUN_ID",
    "MASTER_ADDR",
    "MASTER_PORT",
    "TORCHELASTIC_RESTART_COUNT",
)
"""What launchers set alike in all processes that train together, and otherwise in those of another attempt."""


class Place(NamedTuple):
    """The rank of a process, how many there are, and the name of the job that they are of (see `ProcessNote`)."""

    rank: int
    world_size: int
    job: str


def place(environ: Mapping[str, str]) -> Place:
    """What torch.distributed says where it is initialised (a program may start its ranks by itself), or the launcher's
    variables; a job of one where neither says anything. Does not import torch."""
    rank, size = _number(environ, "RANK", 0), _number(environ, "WORLD_SIZE", 1)
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        rank, size = distributed.get_rank(), distributed.get_world_size()
    return Place(rank, size, "-".join(environ[name] for name in JOB_VARIABLES if environ.get(name)))


def _number(environ: Mapping[str, str], name: str, default: int) -> int:
    told = environ.get(name, "")
    return int(told) if told.isdigit() else default


def here() -> Place:
    """The place of this process."""
    return place(os.environ)
