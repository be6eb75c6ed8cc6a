"""Prepare a process for a framework and load the training that it executes."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import NamedTuple

import torch

from traincheck.sdc.determinism import make_deterministic
from traincheck.sdc.frameworks import XLA
from traincheck.sdc.screening.devices import device_of, software
from traincheck.sdc.study.host import Host
from traincheck.sdc.workload.training import TorchTraining, Training
from traincheck.sdc.workload.workload import Workload, load_workload


class Beginning(NamedTuple):
    """A prepared process.

    `begin` creates a new training at each call. `software` lists the versions and hardware that results depend on.
    `settings` lists the settings of this process. `workload` is None except with torch.
    """

    begin: Callable[[], Training]
    software: dict[str, str]
    settings: dict[str, str]
    workload: Workload | None = None


def prepare(framework: str, workload: str, seed: int, device: str, threads: int, host: Host | None = None) -> Beginning:
    """Make this process deterministic and load a workload by name; with several ranks, the part of this rank.

    Raises BadOption and WorkloadUnusable.
    """
    if framework == XLA:
        from traincheck.sdc.xla.process_setup import prepare_xla  # here, for it needs jax

        return Beginning(*prepare_xla(workload, seed, device, threads))
    settings = make_deterministic(seed, threads)
    own = _own(device_of(device), host.rank if host is not None else 0)
    loaded = load_workload(workload, seed, own, host)
    make_deterministic(seed, threads)  # again: what was imported may have drawn, or have brought numpy with it
    return Beginning(functools.partial(TorchTraining, loaded), software(own), settings, loaded)


def _own(device: torch.device, rank: int) -> torch.device:
    """Return the accelerator of this rank unless the user named one: as the launcher assigns it, else by rank."""
    if device.type == "cpu" or device.index is not None:
        return device
    if "LOCAL_RANK" in os.environ:
        return device_of(f"{device.type}:{int(os.environ['LOCAL_RANK'])}")
    return device_of(f"{device.type}:{rank % torch.get_device_module(device).device_count()}")
