"""Runs the ranks of a host as threads of one process, to test what they compute."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from traincheck.sdc.study.host import Host
from traincheck.sdc.workload.workload import Workload

SIZE = 2


class Threads(Host):
    """Ranks that are threads of one process, and sum tensors placed in a shared list."""

    def __init__(self, rank: int, side_by_side: list[Any], all_there: threading.Barrier) -> None:
        super().__init__(rank, SIZE)
        self._side_by_side, self._all_there = side_by_side, all_there

    def total(self, tensor: torch.Tensor) -> torch.Tensor:
        self._side_by_side[self.rank] = tensor.detach()
        self._all_there.wait(60)
        summed = torch.stack(self._side_by_side).sum(0)
        self._all_there.wait(60)
        return summed


def losses_of(workload: Workload, model: torch.nn.Module, steps: int) -> list[float]:
    """Train a model of a workload, and return its losses."""
    optimizer = workload.build_optimizer(model)
    losses = []
    for step in range(1, steps + 1):
        optimizer.zero_grad()
        loss = workload.loss(model, workload.batch(step))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


_BUILDING = threading.Lock()


def on_each_rank(work: Callable[[Host], Any]) -> list[Any]:
    side_by_side, all_there = [None] * SIZE, threading.Barrier(SIZE)
    with ThreadPoolExecutor(SIZE) as pool:
        return list(pool.map(work, [Threads(rank, side_by_side, all_there) for rank in range(SIZE)]))


def trained(workload: Workload, steps: int = 3) -> tuple[list[float], dict[str, torch.Tensor], dict[str, Any]]:
    """Return the losses, the parameters after the last step, and their gradients."""
    with _BUILDING:  # they draw from one stream
        model = workload.build_model()
    losses = losses_of(workload, model, steps)
    named = dict(model.named_parameters())
    return (
        losses,
        {name: parameter.detach() for name, parameter in named.items()},
        {name: parameter.grad for name, parameter in named.items()},
    )
