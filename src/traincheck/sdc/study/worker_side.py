"""Execute one rank of a study, from its start to the merged results."""

from __future__ import annotations

import platform
import signal
import threading
from collections.abc import Sequence
from typing import Any

import torch.distributed as dist

from traincheck.sdc.process_setup import prepare
from traincheck.sdc.study.comparison import Progress, Study
from traincheck.sdc.study.mismatch import plain
from traincheck.sdc.study.plan import FORMAT, VERSION, Plan
from traincheck.sdc.study.rank_merge import merged
from traincheck.sdc.study.worker_pair import HOSTS, LEADER, Pair


def execute_side(plan: Plan, rank: int, progress: Progress, store: str | None = None) -> dict[str, Any]:
    """Execute this rank of a study and return the results of all ranks; the first half of the ranks is trusted.

    `store` is the address at which the ranks connect; without it, a launcher has set the address. Ctrl-C at rank 0 ends
    the study after a step.
    """
    stop = _stop_event()
    size = plan.tensor_parallel
    pair = Pair(rank, size)
    prepared = prepare(plan.framework, plan.workload, plan.seed, plan.device, plan.threads, pair.host)
    if store is None:
        dist.init_process_group("gloo")
    else:
        dist.init_process_group("gloo", init_method=store, rank=rank, world_size=HOSTS * size)
    pair.create_groups()
    shown: Progress = progress if rank == LEADER else lambda phase, done, total: None
    study = Study(pair, prepared.begin, plan.steps, plan.faults, shown, lambda: not stop.is_set())
    levels = merged(study.run(plan.levels))
    workers = pair.gather({"host": platform.node(), **prepared.software})
    interrupted = study.interrupted
    del study, prepared
    pair.close()
    result = {
        "format": FORMAT,
        "version": VERSION,
        **plan.data(),
        "interrupted": interrupted,
        "workers": _workers(workers[:size], workers[size:]),
        "levels": levels,
    }
    whole: dict[str, Any] = plain(result)
    return whole


def _workers(trusted: Sequence[dict[str, str]], suspect: Sequence[dict[str, str]]) -> dict[str, dict[str, str]]:
    """Return the environments of a pair of ranks: the first pair that differs, else the first pair."""

    def differ(first: dict[str, str], second: dict[str, str]) -> bool:
        return {**first, "host": ""} != {**second, "host": ""}

    pairs = list(zip(trusted, suspect, strict=True))
    first, second = next((pair for pair in pairs if differ(*pair)), pairs[0])
    return {"trusted": first, "suspect": second}


def _stop_event() -> threading.Event:
    """Return an event that Ctrl-C or a launcher's signal sets. Raising would block the other worker within a step."""
    requested = threading.Event()
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: requested.set())
    return requested
