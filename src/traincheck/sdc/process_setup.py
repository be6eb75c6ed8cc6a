"""Beginning: a process settled for a framework, and how a training begins in it."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import NamedTuple

import torch

from traincheck.sdc.determinism import settle
from traincheck.sdc.frameworks import XLA
from traincheck.sdc.screening.devices import device_of, software
from traincheck.sdc.study.host import Host
from traincheck.sdc.workload.training import TorchTraining, Training
from traincheck.sdc.workload.workload import Workload, load_workload


class Beginning(NamedTuple):
    """What begins a training, each time anew; what its bits depend on besides; the settings that were made; with torch
    the workload."""

    begin: Callable[[], Training]
    software: dict[str, str]
    settings: dict[str, str]
    workload: Workload | None = None


def prepare(framework: str, workload: str, seed: int, device: str, threads: int, host: Host | None = None) -> Beginning:
    """Settle this process and load a workload by its name, of a host of several ranks the part that this one executes.

    Raises BadOption and WorkloadUnusable.
    """
    if framework == XLA:
        from traincheck.sdc.xla.process_setup import prepare_xla  # here, for it needs jax

        return Beginning(*prepare_xla(workload, seed, device, threads))
    settings = settle(seed, threads)
    own = _own(device_of(device), host.rank if host is not None else 0)
    loaded = load_workload(workload, seed, own, host)
    settle(seed, threads)  # again: what was imported may have drawn, or have brought numpy with it
    return Beginning(functools.partial(TorchTraining, loaded), software(own), settings, loaded)


def _own(device: torch.device, rank: int) -> torch.device:
    """The accelerator of this rank of its host, where none is named: as a launcher says, or one after the other."""
    if device.type == "cpu" or device.index is not None:
        return device
    if "LOCAL_RANK" in os.environ:
        return device_of(f"{device.type}:{int(os.environ['LOCAL_RANK'])}")
    return device_of(f"{device.type}:{rank % torch.get_device_module(device).device_count()}")
