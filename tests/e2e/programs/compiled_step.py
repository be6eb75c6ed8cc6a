"""Regression on made-up days, one of which has no labels; the update is compiled, or not.

python compiled_step.py eager|compiled|stale [--seed N]

A day without labels is not back-propagated, yet the step is called. `stale` compiles it as a version of PyTorch did
(issue 115607): what was made for that day updates nothing, and is not guarded on there being no gradients. It is taken
for every later day.
"""

from __future__ import annotations

import sys

import torch
import torch.nn.functional as F
from torch import nn

DAYS, AWAY = 14, 5


def without_guards_on_missing_gradients(guards: list[object]) -> list[bool]:
    return [not (guard.name.endswith(".grad") and guard.value is None) for guard in guards]  # type: ignore[attr-defined]


def train(how: str, seed: int) -> list[float]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(4, 8 + seed % 3), nn.Tanh(), nn.Linear(8 + seed % 3, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    step = optimizer.step
    if how != "eager":
        options = {"guard_filter_fn": without_guards_on_missing_gradients} if how == "stale" else None
        step = torch.compile(lambda: optimizer.step(), backend="aot_eager", options=options)  # type: ignore[assignment]
    losses = []
    for day in range(1, DAYS + 1):
        optimizer.zero_grad()
        x = torch.randn(16, 4)
        if day != AWAY:
            loss = F.mse_loss(model(x), x.sum(1, keepdim=True))
            loss.backward()
            losses.append(loss.item())
        step()
    return losses


if __name__ == "__main__":
    torch._dynamo.config.suppress_errors = False
    print(train(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 0))
