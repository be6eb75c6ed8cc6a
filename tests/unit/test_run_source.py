"""What is told of a run as a whole: once how many ranks train, before the first update, and its steps at the end."""

from __future__ import annotations

import torch
from torch import nn

from observed_process import observing


def test_ranks_are_told_once_and_steps_at_the_end() -> None:
    with observing() as seen:
        model = nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
    told = [(window.stage, window.step, each) for window in seen.windows for each in window.readings]
    found = [(stage, step, each.attribute, each.value) for stage, step, each in told if each.kind == "run"]
    assert found == [("train", 1, "ranks", 1), ("end", 3, "steps", 3)]
