"""Side: one of the two workers of a study, from its start to what was found."""

from __future__ import annotations

import os
import platform
import signal
import threading
from typing import Any

import torch
import torch.distributed as dist

from traincheck.sdc.determinism import settle
from traincheck.sdc.devices import device_of, software
from traincheck.sdc.mismatch import plain
from traincheck.sdc.pair import NAMES, TRUSTED, Pair
from traincheck.sdc.plan import FORMAT, VERSION, Plan
from traincheck.sdc.study import Progress, Study
from traincheck.sdc.workload import load_workload


def execute_side(plan: Plan, rank: int, progress: Progress, store: str | None = None) -> dict[str, Any]:
    """Take part in a study as this rank: 0 is trusted, 1 is suspect; what was found, on both.

    `store` is where the two meet; without it a launcher has said where. Ctrl-C at the trusted worker ends both after a
    step.
    """
    stop = _stop_asked()
    settle(plan.seed, plan.threads)
    device = _own(device_of(plan.device))
    workload = load_workload(plan.workload, plan.seed, device)
    settle(plan.seed, plan.threads)
    if store is None:
        dist.init_process_group("gloo")
    else:
        dist.init_process_group("gloo", init_method=store, rank=rank, world_size=len(NAMES))
    pair = Pair(rank)
    shown: Progress = progress if rank == TRUSTED else lambda what, done, total: None
    study = Study(pair, workload, plan.steps, plan.faults, shown, lambda: not stop.is_set())
    levels = study.run(plan.levels)
    own = {"host": platform.node(), **software(device)}
    other = pair.told(own)
    interrupted = study.interrupted
    del study, workload
    pair.close()
    found = {
        "format": FORMAT,
        "version": VERSION,
        **plan.data(),
        "interrupted": interrupted,
        "workers": {"trusted": own if rank == TRUSTED else None, "suspect": other},
        "levels": levels,
    }
    whole: dict[str, Any] = plain(found)
    return whole


def _own(device: torch.device) -> torch.device:
    """The accelerator of this worker among those of its host, where none is named."""
    if device.type == "cpu" or device.index is not None:
        return device
    place = int(os.environ.get("LOCAL_RANK", "0"))
    return device_of(f"{device.type}:{place}")


def _stop_asked() -> threading.Event:
    """Set by Ctrl-C, or by what a launcher sends. Not to be raised: the other worker waits in the midst of a step."""
    asked = threading.Event()
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: asked.set())
    return asked
