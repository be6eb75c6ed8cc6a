"""Facts about the run: the number of ranks once, before the first update, and the steps at the end."""

from __future__ import annotations

import torch
from torch import nn

from observed_process import observing


def test_ranks_and_the_seed_are_recorded_once_and_steps_at_the_end() -> None:
    with observing() as seen:
        model = nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
    readings = [(window.stage, window.step, reading) for window in seen.windows for reading in window.readings]
    run_values = [
        (stage, step, reading.attribute, reading.value) for stage, step, reading in readings if reading.kind == "run"
    ]
    assert run_values == [("train", 1, "ranks", 1), ("train", 1, "seed", torch.initial_seed()), ("end", 3, "steps", 3)]
