"""Optimizers that are built again in each pass over data that a program slices itself, and programs that mean it."""

from __future__ import annotations

import copy
import functools
import gc
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import prune

from trained_programs import Net, errors_of

STATE_LOST = "optimizer-state-lost"

Batch = tuple[torch.Tensor, torch.Tensor]


def samples(number: int = 40) -> Batch:
    return torch.randn(number, 6), torch.arange(number) % 3


def batches(data: Batch, size: int = 8) -> Iterator[Batch]:
    """Slice data in a new order, without the remainder."""
    order = torch.randperm(len(data[0]))
    for start in range(0, len(order) - size + 1, size):
        index = order[start : start + size]
        yield data[0][index], data[1][index]


def updated(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Batch) -> None:
    optimizer.zero_grad()
    F.cross_entropy(model(batch[0]), batch[1]).backward()
    optimizer.step()


def built_in_each_pass(
    *,
    momentum: float = 0.9,
    passes: int = 1,
    size: int = 8,
    model: nn.Module | None = None,
    data_of: Callable[[int], Batch] | None = None,
    rate_of: Callable[[int], float] = lambda number: 0.1,
    after: Callable[[nn.Module], None] = lambda model: None,
) -> None:
    model, data = model or Net(), samples()
    for number in range(4):
        of_pass = data_of(number) if data_of else data
        optimizer = torch.optim.SGD(model.parameters(), lr=rate_of(number), momentum=momentum)
        for _ in range(passes):
            for batch in batches(of_pass, size):
                updated(model, optimizer, batch)
        after(model)


def micro_batches() -> None:
    model, data = Net(), samples(80)
    for _ in range(3):
        optimizer = torch.optim.Adam(model.parameters())
        for x, y in batches(data, 20):
            optimizer.zero_grad()
            for part, target in zip(x.chunk(4), y.chunk(4), strict=True):
                F.cross_entropy(model(part), target).backward()
            optimizer.step()


def remainder_is_left_out() -> None:
    data = samples(200)
    built_in_each_pass(data_of=lambda number: data, size=32)


class OfPairs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.users, self.items = nn.Embedding(50, 4), nn.Embedding(60, 4)

    def forward(self, users: torch.Tensor, *, items: torch.Tensor) -> torch.Tensor:
        return (self.users(users) * self.items(items)).sum(dim=1)


def pairs_of_numbers() -> None:
    model, (users, items) = OfPairs(), (torch.arange(50), torch.randperm(60)[:50])
    for _ in range(3):
        optimizer = torch.optim.Adam(model.parameters())
        for index in torch.randperm(50).split(10):
            optimizer.zero_grad()
            model(users[index], items=items[index]).square().mean().backward()
            optimizer.step()


def after_models_that_are_gone() -> None:
    """Python may give a model the address of one before; the data are new to it all the same."""
    data, addresses = samples(), set()
    while id(model := Net()) not in addresses:
        addresses.add(id(model))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for batch in batches(data):
            updated(model, optimizer, batch)
        del model, optimizer
        gc.collect()
    built_in_each_pass(model=model, data_of=lambda number: data)


@pytest.mark.parametrize(
    "program",
    [built_in_each_pass, micro_batches, remainder_is_left_out, pairs_of_numbers, after_models_that_are_gone],
)
def test_the_same_samples_show_a_pass(tmp_path: Path, program: Callable[[], None]) -> None:
    assert STATE_LOST in errors_of(tmp_path, program)


def built_once() -> None:
    model, data = Net(), samples()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(3):
        for batch in batches(data):
            updated(model, optimizer, batch)


def tasks() -> None:
    """Continual learning, in one pass over each task."""
    built_in_each_pass(data_of=lambda number: samples())


def tasks_that_return() -> None:
    data = samples(), samples()
    built_in_each_pass(data_of=lambda number: data[number % 2])


def rehearsal(*, joined: bool) -> None:
    model, memory = Net(), samples(0)
    for _ in range(3):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        for x, y in batches(samples()):
            old = memory[0][:8], memory[1][:8]
            optimizer.zero_grad()
            if joined:
                F.cross_entropy(model(torch.cat((x, old[0]))), torch.cat((y, old[1]))).backward()
            else:
                F.cross_entropy(model(x), y).backward()
                if len(old[0]):
                    F.cross_entropy(model(old[0]), old[1]).backward()
            optimizer.step()
            memory = torch.cat((memory[0], x[:4])), torch.cat((memory[1], y[:4]))


def federated(*, averages: bool) -> None:
    """Clients train one model in turns, or copies of it that the server averages."""
    model, clients = Net(), [samples() for _ in range(3)]
    for _ in range(3):
        states = []
        start = copy.deepcopy(model.state_dict())
        for data in clients:
            if averages:
                model.load_state_dict(start)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
            for batch in batches(data):
                updated(model, optimizer, batch)
            states.append(copy.deepcopy(model.state_dict()))
        if averages:
            model.load_state_dict({name: sum(state[name] for state in states) / 3 for name in start})


def of_one_client() -> None:
    """Reptile with one task, or a server with one client: the model moves a part of the way."""
    model, data = Net(), samples()
    for _ in range(4):
        before = copy.deepcopy(model.state_dict())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        for batch in batches(data):
            updated(model, optimizer, batch)
        after = model.state_dict()
        model.load_state_dict({name: before[name].lerp(after[name], 0.5) for name in before})


def pruned_by_torch(model: nn.Module) -> None:
    prune.l1_unstructured(model.head, "weight", amount=0.2)  # type: ignore[arg-type]


def pruned_by_hand(model: nn.Module) -> None:
    for parameter in model.parameters():
        parameter.data.mul_(parameter.data.abs() > parameter.data.abs().median() / 2)


def prune_and_train(step: Callable[[nn.Module], None]) -> None:
    model = Net()
    step(model)
    built_in_each_pass(model=model, after=step)


def averaged_by_hand(model: nn.Module) -> None:
    """Ranks that train on their own average their parameters after each round (local SGD)."""
    for parameter in model.parameters():
        parameter.data.mul_(0.9)


def validated_across() -> None:
    """Each fold has a new model; its samples are nearly those of other folds."""
    x, y = samples(48)
    for fold in range(4):
        model = Net()
        optimizer = torch.optim.Adam(model.parameters())
        kept = torch.arange(48) % 12 != fold
        for batch in batches((x[kept], y[kept])):
            updated(model, optimizer, batch)


def a_model_is_reset() -> None:
    built_in_each_pass(after=lambda model: model.apply(lambda part: getattr(part, "reset_parameters", int)()))  # type: ignore[misc]


def a_second_stage_trains_more_slowly() -> None:
    built_in_each_pass(rate_of=lambda number: 0.1 / (number + 1))


def few_different_samples() -> None:
    """Tasks over sequences of bits: samples of one are samples of another."""
    built_in_each_pass(data_of=lambda number: ((torch.randn(40, 6) > 0).float(), torch.arange(40) % 3))


def all_data_at_once() -> None:
    """An inner problem that is solved again by one step after each outer step."""
    built_in_each_pass(size=40)


def labelled_data_grow() -> None:
    data = samples(120)
    built_in_each_pass(data_of=lambda number: (data[0][: 40 + 20 * number], data[1][: 40 + 20 * number]), size=16)


@pytest.mark.parametrize(
    "program",
    [
        built_once,
        functools.partial(built_in_each_pass, momentum=0.0),
        functools.partial(built_in_each_pass, passes=2),
        tasks,
        tasks_that_return,
        functools.partial(rehearsal, joined=False),
        functools.partial(rehearsal, joined=True),
        functools.partial(federated, averages=False),
        functools.partial(federated, averages=True),
        of_one_client,
        functools.partial(prune_and_train, pruned_by_torch),
        functools.partial(prune_and_train, pruned_by_hand),
        functools.partial(built_in_each_pass, after=averaged_by_hand),
        validated_across,
        a_model_is_reset,
        a_second_stage_trains_more_slowly,
        few_different_samples,
        all_data_at_once,
        labelled_data_grow,
    ],
)
def test_programs_that_begin_anew_are_no_error(tmp_path: Path, program: Callable[[], None]) -> None:
    assert STATE_LOST not in errors_of(tmp_path, program)
