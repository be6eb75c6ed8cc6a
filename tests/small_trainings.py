"""A short training run that uses every observed API, and the process state that observation must not change."""

from __future__ import annotations

import random
import sys

import numpy as np
import torch
from torch import nn
from torch.nn.modules import module as nn_module
from torch.optim import lr_scheduler
from torch.optim import optimizer as optim_module
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data._utils import fetch
from torch.utils.data.dataloader import _BaseDataLoaderIter


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5))
        self.head = nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x))


def train() -> tuple[list[float], list[torch.Tensor], object]:
    """A short run that uses everything that is observed: losses, final weights, and the random streams afterwards."""
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    model = Model()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    scheduler = lr_scheduler.StepLR(optimizer, 2)
    data = TensorDataset(torch.randn(24, 4), torch.randint(0, 2, (24,)))
    losses = []
    for _ in range(2):
        model.train()
        for x, y in DataLoader(data, batch_size=8, shuffle=True):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                loss = nn.functional.cross_entropy(model(x).float(), y)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            losses.append(loss.item())
        model.eval()
        with torch.no_grad():
            losses.append(model(torch.randn(3, 4)).sum().item())
        scheduler.step()
    streams = (torch.rand(1).item(), random.random(), np.random.rand())
    return losses, [value.clone() for value in model.state_dict().values()], streams


def same(
    first: tuple[list[float], list[torch.Tensor], object], second: tuple[list[float], list[torch.Tensor], object]
) -> bool:
    return first[0] == second[0] and first[2] == second[2] and all(map(torch.equal, first[1], second[1]))


HOLDERS = [
    torch,
    torch.autograd,
    torch.nn.utils,
    torch.nn.utils.clip_grad,
    torch.serialization,
    torch.random,
    torch.amp.autocast,
    torch.no_grad,
    torch.inference_mode,
    torch.amp.GradScaler,
    torch.optim.Optimizer,
    nn.Module,
    DataLoader,
    _BaseDataLoaderIter,
    fetch._MapDatasetFetcher,
    fetch._IterableDatasetFetcher,
    lr_scheduler.LRScheduler,
    lr_scheduler.ReduceLROnPlateau,
]


def process_state() -> dict[str, object]:
    """Everything that a source could have left in the process, by identity."""
    state: dict[str, object] = {
        f"{getattr(holder, '__name__', holder)}.{name}": id(value)
        for holder in HOLDERS
        for name, value in vars(holder).items()
        if callable(value)
    }
    for name, value in (*vars(nn_module).items(), *vars(optim_module).items()):
        if name.startswith("_global") and isinstance(value, dict):
            state[name] = dict(value)
    state["modes"] = len(torch.overrides._get_current_function_mode_stack())
    state["profile"] = sys.getprofile()
    if sys.version_info >= (3, 12):
        state["tools"] = [sys.monitoring.get_tool(tool) for tool in range(6)]
    return state
