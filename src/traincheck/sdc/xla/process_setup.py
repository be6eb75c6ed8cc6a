"""Beginning: a process settled for XLA, and how a training of a built-in workload begins in it."""

from __future__ import annotations

from collections.abc import Callable

import torch

from traincheck.sdc.frameworks import XLA, must_be_executable
from traincheck.sdc.workload.decoder import DecoderWorkload
from traincheck.sdc.workload.workload import load_workload
from traincheck.sdc.xla.settings import settle_xla, software
from traincheck.sdc.xla.training import XlaTraining, XlaWorkload


def prepare_xla(
    workload: str, seed: int, device: str, threads: int
) -> tuple[Callable[[], XlaTraining], dict[str, str], dict[str, str]]:
    """As `sdc.beginning.prepare`. Raises BadOption."""
    must_be_executable(XLA, workload)
    drawn = load_workload(workload, seed, torch.device("cpu"))
    assert isinstance(drawn, DecoderWorkload), "only those are built in"
    own, settings = settle_xla(seed, threads, device, wide=drawn.dtype == torch.float64)
    return XlaWorkload(drawn).begin, software(own, threads), settings
