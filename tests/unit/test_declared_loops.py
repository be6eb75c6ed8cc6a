"""Schedules in loops of a program: as long as the run in the unit of their steps, and in another one."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F
from torch.optim import lr_scheduler as schedules
from torch.utils.data import DataLoader, TensorDataset

from traincheck.reporting.json_report import read_json
from trained_programs import Net, errors_of

WRONG_UNIT = "schedule-does-not-fit-run"
EPOCHS, BATCHES, SAMPLES = 7, 9, 5

Schedule = Callable[[torch.optim.Optimizer], Any]


def cosine(length: int) -> Schedule:
    return lambda optimizer: schedules.CosineAnnealingLR(optimizer, T_max=length)


def after_warm_up(length: int) -> Schedule:
    """A warm-up, and a schedule that counts from its end on."""

    def build(optimizer: torch.optim.Optimizer) -> Any:
        warm_up = schedules.LinearLR(optimizer, start_factor=0.1, total_iters=5)
        return schedules.SequentialLR(optimizer, [warm_up, cosine(length)(optimizer)], [5])

    return build


def falling(length: int) -> Schedule:
    return lambda optimizer: schedules.LambdaLR(optimizer, lambda step: max(0.1, 1 - 0.9 * step / length))


def falling_by_batches(length: int) -> Schedule:
    """Counts epochs, and computes with batches."""
    batches = BATCHES
    return lambda optimizer: schedules.LambdaLR(optimizer, lambda epoch: 1 - 0.9 * epoch * batches / length)


def with_an_unbound_variable(length: int) -> Schedule:
    """A schedule whose function names a variable that is not bound in the first steps."""

    def rate(step: int) -> float:
        return 1 - 0.9 * step / length if step < length else last

    if not length:
        last = 0.0
    return lambda optimizer: schedules.LambdaLR(optimizer, rate)


class Engine:
    """Owns the update, which it makes after each second batch."""

    def __init__(self, training: Training) -> None:
        self.optimizer, self.scheduler, self.batches = training.optimizer, training.scheduler, 0

    def step(self) -> None:
        self.batches += 1
        if self.batches % 2 == 0:
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.scheduler.step()


class ForgetfulEngine(Engine):
    """Has the schedule, and does not step it."""

    def step(self) -> None:
        self.batches += 1
        if self.batches % 2 == 0:
            self.optimizer.step()
            self.optimizer.zero_grad()


class Training:
    """A model with its data, optimizer and schedule. Its methods are loops."""

    def __init__(self, schedule: Schedule) -> None:
        self.config = argparse.Namespace(epochs=EPOCHS)
        data = TensorDataset(torch.randn(SAMPLES * BATCHES, 6), torch.arange(SAMPLES * BATCHES) % 3)
        self.loader = DataLoader(data, batch_size=SAMPLES, shuffle=True)
        self.model = Net()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.scheduler = schedule(self.optimizer)

    def update(self, x: torch.Tensor, y: torch.Tensor) -> None:
        self.optimizer.zero_grad()
        F.cross_entropy(self.model(x), y).backward()
        self.optimizer.step()


def each_batch(schedule: Schedule) -> None:
    t = Training(schedule)
    for _ in range(1, t.config.epochs + 1):
        for x, y in t.loader:
            t.update(x, y)
            t.scheduler.step()


def each_epoch(schedule: Schedule) -> None:
    t = Training(schedule)
    for _ in range(t.config.epochs):
        for _, (x, y) in enumerate(t.loader):
            t.update(x, y)
        t.scheduler.step()


def never(schedule: Schedule) -> None:
    t = Training(schedule)
    for epoch in range(EPOCHS):
        one_epoch(t, epoch)


def one_epoch(t: Training, epoch: int) -> None:
    for x, y in t.loader:
        t.update(x, y)


def parts_of_a_permutation(schedule: Schedule) -> None:
    t = Training(schedule)
    x, y = t.loader.dataset.tensors  # type: ignore[attr-defined]
    for _ in range(EPOCHS):
        for chosen in torch.randperm(len(x)).split(SAMPLES):
            t.update(x[chosen], y[chosen])
        t.scheduler.step()


def by_an_engine(schedule: Schedule, kind: type[Engine] = Engine) -> None:
    t = Training(schedule)
    engine = kind(t)
    for _ in range(EPOCHS):
        for x, y in t.loader:
            F.cross_entropy(t.model(x), y).backward()
            engine.step()


def each_group(schedule: Schedule, size: int = 2, steps: bool = True) -> None:
    t = Training(schedule)
    for _ in range(EPOCHS):
        for i, (x, y) in enumerate(t.loader, 1):
            F.cross_entropy(t.model(x), y).backward()
            if i % size == 0 or i == len(t.loader):
                t.optimizer.step()
                t.optimizer.zero_grad()
                if steps:
                    t.scheduler.step()


def late(schedule: Schedule) -> None:
    """Steps the schedule from the twelfth batch on."""
    t, count = Training(schedule), 0
    for _ in range(EPOCHS):
        for x, y in t.loader:
            t.update(x, y)
            count += 1
            if count > 12:
                t.scheduler.step()


def warmed_up_by_hand(schedule: Schedule) -> None:
    t, count = Training(schedule), 0
    for _ in range(EPOCHS):
        for x, y in t.loader:
            count += 1
            for group in t.optimizer.param_groups:
                group["lr"] = min(count, 12) / 120
            t.update(x, y)
        t.scheduler.step()


def generated(schedule: Schedule) -> None:
    """Nobody knows how many batches there are."""

    def batches() -> Iterator[list[torch.Tensor]]:
        yield from t.loader

    t = Training(schedule)
    for _ in range(EPOCHS):
        for x, y in batches():
            t.update(x, y)
        t.scheduler.step()


def two_loaders(schedule: Schedule) -> None:
    """Each update has two backwards and batches of two loaders, and is under a condition that always holds."""
    t = Training(schedule)
    other = DataLoader(t.loader.dataset, batch_size=SAMPLES)
    for _ in range(EPOCHS):
        for (x, y), (z, _) in zip(t.loader, other, strict=True):
            if len(x) == len(z):
                F.cross_entropy(t.model(z), y).backward()
                t.update(x, y)
            t.scheduler.step()


def two_optimizers(schedule: Schedule) -> None:
    """Both update in each batch, and one of them makes two backwards."""
    first, second = Training(schedule), Training(schedule)
    for _ in range(EPOCHS):
        for x, y in first.loader:
            F.cross_entropy(first.model(x), y).backward()
            first.update(x, y)
            second.update(x, y)
            first.scheduler.step()
            second.scheduler.step()


def sweep(schedule: Schedule) -> None:
    """Each run has a schedule of its own, and as many epochs as there are runs."""
    for _ in range(EPOCHS):
        t = Training(schedule)
        for _ in range(2):
            for x, y in t.loader:
                t.update(x, y)
                t.scheduler.step()


def resumed(schedule: Schedule) -> None:
    t = Training(schedule)
    t.scheduler.load_state_dict({**t.scheduler.state_dict(), "last_epoch": 2})
    for _ in range(2, EPOCHS):
        for x, y in t.loader:
            t.update(x, y)
        t.scheduler.step()


@pytest.mark.parametrize(
    "program",
    [
        partial(each_batch, cosine(EPOCHS)),
        partial(each_epoch, cosine(EPOCHS * BATCHES)),
        partial(each_epoch, lambda o: schedules.OneCycleLR(o, 0.1, total_steps=EPOCHS * BATCHES)),
        partial(each_epoch, after_warm_up(EPOCHS * BATCHES - 5)),
        partial(never, cosine(EPOCHS * BATCHES)),
        partial(parts_of_a_permutation, cosine(EPOCHS * BATCHES)),
        partial(each_epoch, falling(EPOCHS * BATCHES)),
        partial(each_epoch, with_an_unbound_variable(EPOCHS * BATCHES)),
        partial(by_an_engine, cosine(EPOCHS * BATCHES // 2), ForgetfulEngine),
        partial(each_group, cosine(EPOCHS * 5), steps=False),
        partial(each_group, cosine(EPOCHS * BATCHES)),
        partial(two_optimizers, cosine(EPOCHS)),
    ],
)
def test_a_length_in_another_unit_is_an_error(tmp_path: Path, program: Callable[[], None]) -> None:
    assert WRONG_UNIT in errors_of(tmp_path, program)


@pytest.mark.parametrize(
    "program",
    [
        partial(each_batch, cosine(EPOCHS * BATCHES)),
        partial(each_batch, cosine(EPOCHS * BATCHES // 2)),
        partial(each_batch, cosine(BATCHES)),
        partial(each_batch, after_warm_up(EPOCHS * BATCHES)),
        partial(each_epoch, cosine(EPOCHS)),
        partial(each_epoch, cosine(2 * EPOCHS)),
        partial(each_group, cosine(EPOCHS * 5)),
        partial(each_group, cosine(EPOCHS), size=BATCHES),  # each epoch has one update
        partial(parts_of_a_permutation, cosine(EPOCHS)),
        partial(by_an_engine, cosine(EPOCHS * BATCHES // 2)),
        partial(each_epoch, falling(EPOCHS)),
        partial(each_epoch, falling_by_batches(EPOCHS * BATCHES)),
        partial(each_batch, falling(EPOCHS)),  # the function may multiply it by the batches of an epoch
        partial(late, cosine(EPOCHS * BATCHES)),
        partial(warmed_up_by_hand, cosine(EPOCHS * BATCHES)),
        partial(generated, cosine(EPOCHS * BATCHES)),
        partial(two_optimizers, cosine(EPOCHS * BATCHES)),
        partial(two_loaders, cosine(EPOCHS * BATCHES)),
        partial(sweep, cosine(2 * BATCHES)),
        partial(sweep, cosine(EPOCHS)),
        partial(resumed, cosine(EPOCHS * BATCHES)),
    ],
)
def test_what_is_meant_so_is_clean(tmp_path: Path, program: Callable[[], None]) -> None:
    assert WRONG_UNIT not in errors_of(tmp_path, program)


@pytest.mark.parametrize(
    ("program", "length", "text"),
    [
        (each_batch, EPOCHS, "7 steps, the number of epochs of the run, but the program steps it after each update"),
        (each_epoch, EPOCHS * BATCHES, "63 steps, the number of batches of the run, but the loop around the updates"),
    ],
)
def test_a_finding_names_both_units(
    program: Callable[[Schedule], None], length: int, text: str, tmp_path: Path
) -> None:
    errors_of(tmp_path, partial(program, cosine(length)))
    findings = [f for f in read_json(tmp_path / "run" / "report.json").findings if f.identity == WRONG_UNIT]
    assert text in str(findings) and findings[0].step == 2
