"""Side: one rank of the workers of a study, from its start to what was found."""

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
    """Take part in a study as this rank: the first half is trusted, the other suspect; what was found, on all.

    `store` is where they meet; without it a launcher has said where. Ctrl-C at rank 0 ends all after a step.
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
    """What the first ranks run on, or the first two of a pair that run on something different."""

    def differ(first: dict[str, str], second: dict[str, str]) -> bool:
        return {**first, "host": ""} != {**second, "host": ""}

    pairs = list(zip(trusted, suspect, strict=True))
    first, second = next((pair for pair in pairs if differ(*pair)), pairs[0])
    return {"trusted": first, "suspect": second}


def _stop_event() -> threading.Event:
    """Set by Ctrl-C, or by what a launcher sends. Not to be raised: the other worker waits in the midst of a step."""
    requested = threading.Event()
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: requested.set())
    return requested
