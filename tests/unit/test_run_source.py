"""Facts about the run: the number of ranks once, before the first update, and the steps at the end."""

from __future__ import annotations

import sys

import pytest
import torch
from torch import nn

from observed_process import observing


def train(steps: int) -> None:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()


def test_ranks_and_the_seed_are_recorded_once_and_steps_at_the_end() -> None:
    with observing() as seen:
        train(3)
    readings = [(window.stage, window.step, reading) for window in seen.windows for reading in window.readings]
    run_values = [
        (stage, step, reading.attribute, reading.value) for stage, step, reading in readings if reading.kind == "run"
    ]
    assert run_values == [("train", 1, "ranks", 1), ("train", 1, "seed", torch.initial_seed()), ("end", 3, "steps", 3)]


def role_of_the_end() -> list[str]:
    with observing() as seen:
        train(1)
    return [r.role for window in seen.windows for r in window.readings if (r.kind, r.attribute) == ("run", "steps")]


def test_an_exception_that_ended_the_program_shows_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    assert role_of_the_end() == ["live"]
    monkeypatch.setattr(sys, "last_value", ValueError("of the program"), raising=False)
    assert role_of_the_end() == ["partial"]


def test_a_recording_that_an_exception_ends_is_partial() -> None:
    try:
        raise ValueError("while the recording ends")
    except ValueError:
        assert role_of_the_end() == ["partial"]
