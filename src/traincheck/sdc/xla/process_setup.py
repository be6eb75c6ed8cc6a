"""Prepare a process for XLA and load the built-in workload that it executes."""

from __future__ import annotations

from collections.abc import Callable

import torch

from traincheck.sdc.frameworks import XLA, check_executable
from traincheck.sdc.workload.decoder import DecoderWorkload
from traincheck.sdc.workload.workload import load_workload
from traincheck.sdc.xla.settings import make_xla_deterministic, software
from traincheck.sdc.xla.training import XlaTraining, XlaWorkload


def prepare_xla(
    workload: str, seed: int, device: str, threads: int
) -> tuple[Callable[[], XlaTraining], dict[str, str], dict[str, str]]:
    """Prepare a process like `sdc.process_setup.prepare`. Raises BadOption."""
    check_executable(XLA, workload)
    drawn = load_workload(workload, seed, torch.device("cpu"))
    assert isinstance(drawn, DecoderWorkload), "only decoders are built in"
    own, settings = make_xla_deterministic(seed, threads, device, wide=drawn.dtype == torch.float64)
    return XlaWorkload(drawn).begin, software(own, threads), settings
