"""Steps that are only counted change nothing in what is observed of the others."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn

from loops import loader
from observed_process import Seen, observing
from traincheck.sources.recording import sampling_gate

STEPS = 48
WATCHED = frozenset((1, 2, 3, 20, 21, 40, 41))


@pytest.fixture(autouse=True)
def short_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the machine is, steps count as short."""
    monkeypatch.setattr(sampling_gate, "LONGEST", 1e3)
    monkeypatch.setattr(sampling_gate, "LONGEST_STEP", 1e3)


def quiet(first: int, most: int) -> int:
    number = 0
    while number < most and first + number not in WATCHED:
        number += 1
    return number


def batches() -> Iterator[torch.Tensor]:
    for _ in range(STEPS // 8):
        for (x,) in loader(8):
            yield x


def plain(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for x in batches():
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()


def with_evaluations(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for step, x in enumerate(batches(), start=1):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        if step % 5 == 0:
            model.eval()
            with torch.no_grad():
                model(x)
            model.train()


def without_loader(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for _ in range(STEPS):
        optimizer.zero_grad()
        for _ in range(3):
            model(torch.ones(2, 4)).square().mean().backward()
        optimizer.step()


def another_optimizer(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """A second optimizer appears in the middle, and takes turns with the first."""
    other: torch.optim.Optimizer | None = None
    for step in range(STEPS):
        for active in filter(None, (optimizer, other)):
            active.zero_grad()
            model(torch.ones(2, 4)).square().mean().backward()
            active.step()
        if step == 12:
            other = torch.optim.SGD(model.parameters(), lr=0.01)


def steps_that_fail(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for step in range(STEPS):
        optimizer.zero_grad()
        model(torch.ones(2, 4)).square().mean().backward()
        if step == 12:
            with pytest.raises(ZeroDivisionError):
                optimizer.step(lambda: 1 / 0)  # type: ignore[arg-type,return-value]
        optimizer.step()


PROGRAMS = (plain, with_evaluations, without_loader, another_optimizer, steps_that_fail)


def run(program: Callable[[nn.Module, torch.optim.Optimizer], None], *, counts: bool) -> Seen:
    torch.manual_seed(0)
    with observing(watches=WATCHED.__contains__, quiet_steps=quiet if counts else None) as seen:
        model = nn.Linear(4, 4)
        program(model, torch.optim.SGD(model.parameters(), lr=0.01))
        seen.recorder.counted.end()
    assert seen.faults == []
    return seen


@pytest.mark.parametrize("program", PROGRAMS)
def test_what_is_observed_of_other_steps_stays(program: Callable[[nn.Module, torch.optim.Optimizer], None]) -> None:
    usual, counted = run(program, counts=False), run(program, counts=True)
    assert counted.stages == usual.stages
    assert counted.recorder.steps.step == usual.recorder.steps.step
    assert counted.recorder.steps.updates_made == usual.recorder.steps.updates_made
    for window, other in zip(counted.windows, usual.windows, strict=True):
        calls = [(call.kind, call.levels, call.receiver, call.context, call.args, call.result) for call in other.calls]
        assert [(c.kind, c.levels, c.receiver, c.context, c.args, c.result) for c in window.calls] == calls
        changes = [(change.variable, change.attribute, change.before, change.after) for change in other.changes]
        assert [(c.variable, c.attribute, c.before, c.after) for c in window.changes] == changes


def test_steps_are_counted() -> None:
    counts: list[int] = []

    def program(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        for _ in range(15):
            without = recorder[0].counted.left
            optimizer.zero_grad()
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
            counts.append(without)

    recorder = []
    with observing(watches=WATCHED.__contains__, quiet_steps=quiet) as seen:
        recorder.append(seen.recorder)
        model = nn.Linear(4, 4)
        program(model, torch.optim.SGD(model.parameters(), lr=0.01))
    assert counts[:4] == [0] * 4 and counts[5:] == sorted(counts[5:], reverse=True) and counts[-1] == 5
