"""Gradients that a program averages over the ranks by itself: which of them an update is to use alike."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from observed_process import observing
from traincheck.vocab.demand import Demand
from traincheck.vocab.facts import FactValue, value_of

DEMAND = (
    Demand.of_calls("torch.optim.Optimizer.step", changes=("parameter.data",))
    | Demand.of_calls("torch.autograd.backward", "torch.distributed.all_reduce", "torch.distributed.broadcast")
    | Demand.of_readings("parameter.used_grad")
)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(4, 6)
        self.norm = nn.LayerNorm(6)
        self.head = nn.Linear(6, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.body(x)).relu())  # type: ignore[no-any-return]


EVERYTHING = {f"{layer}.{name}" for layer in ("body", "norm", "head") for name in ("weight", "bias")}
BODY, HEAD = {"body.weight", "body.bias"}, {"head.weight", "head.bias"}

Average = Callable[[Net], object]


@pytest.fixture(autouse=True)
def job() -> Iterator[None]:
    """A job of two ranks, of which this is one; collectives of it do nothing."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    try:
        yield
    finally:
        dist.destroy_process_group()


def averaged(average: Average, *, prepare: Average = lambda model: None, deals: bool = False) -> set[str]:
    """The parameters whose gradients both ranks are to use alike in each of two updates."""
    data = TensorDataset(torch.randn(16, 4))
    sampler = DistributedSampler(data, 2, 0) if deals else None
    with observing(DEMAND) as seen:
        model = Net()
        prepare(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for (x,) in DataLoader(data, batch_size=4, sampler=sampler):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            average(model)
            optimizer.step()
    assert seen.faults == []
    readings = [reading for reading in seen.readings if reading.attribute == "used_grad"]
    is_averaged: dict[str, set[FactValue]] = {}
    for reading in readings:
        name = reading.variable.removeprefix("Net.")
        is_averaged.setdefault(name, set()).add(value_of(reading.context, "data_parallel"))
    assert is_averaged.keys() >= EVERYTHING
    assert len(readings) == len(is_averaged) * (2 if deals else 4)
    assert all(len(values) == 1 for values in is_averaged.values()), "the same in each update"
    return {name for name, values in is_averaged.items() if True in values}


def reduce(parameters: Iterator[nn.Parameter]) -> None:
    for parameter in parameters:
        assert parameter.grad is not None
        dist.all_reduce(parameter.grad)
        parameter.grad /= 2


def broadcast(model: Net) -> None:
    for tensor in model.state_dict().values():
        dist.broadcast(tensor, src=0)


def test_each_gradient_that_is_reduced_after_the_backward_is_to_be_the_same() -> None:
    assert averaged(lambda model: reduce(model.parameters())) == EVERYTHING
    assert (
        averaged(lambda model: [dist.all_reduce(p.grad.data, async_op=True) for p in model.parameters()]) == EVERYTHING
    )
    assert averaged(lambda model: None) == set()


def test_gradients_in_a_flat_buffer_are_reduced_together() -> None:
    def flatten(model: Net) -> None:
        grads = [p.grad for p in model.parameters()]
        flat = torch.cat([grad.reshape(-1) for grad in grads if grad is not None])
        sizes = [p.numel() for p in model.parameters()]
        for p, part in zip(model.parameters(), flat.split(sizes), strict=True):
            p.grad = part.view_as(p)
        dist.all_reduce(flat[: sum(sizes[:2])])

    assert averaged(flatten) == BODY


def test_a_bias_belongs_to_the_averaged_matrix_of_its_layer() -> None:
    assert averaged(lambda model: reduce(p for p in model.parameters() if p.dim() > 1)) == BODY | HEAD


def test_a_vector_that_is_no_bias_may_be_personal() -> None:
    def prepare(model: Net) -> None:
        model.body.user = nn.Parameter(torch.zeros(6))
        model.body.register_forward_hook(lambda layer, args, output: output + layer.user)

    def average(model: Net) -> None:
        reduce(p for p in model.parameters() if p.dim() > 1)

    assert averaged(average, prepare=prepare) == BODY | HEAD


def test_a_bias_may_be_averaged_without_the_shard_of_a_matrix() -> None:
    assert averaged(lambda model: reduce(iter([model.head.bias]))) == {"head.bias"}


def test_a_layer_may_be_personal() -> None:
    """Each rank trains its own head: it is no replica, unless the program makes it one."""

    def average(model: Net) -> None:
        reduce(model.body.parameters())

    assert averaged(average) == BODY
    assert averaged(average, prepare=broadcast) == BODY, "each rank may have data of its own"
    assert averaged(average, deals=True) == BODY, "it may hold a part of the head"
    assert averaged(average, prepare=lambda model: broadcast(model.body), deals=True) == BODY  # type: ignore[arg-type]
    assert averaged(average, prepare=broadcast, deals=True) == EVERYTHING
    assert averaged(lambda model: None, prepare=broadcast, deals=True) == set(), "local SGD"


def test_a_copy_of_a_gradient_may_be_averaged_for_a_report() -> None:
    assert averaged(lambda model: [dist.all_reduce(p.grad.clone()) for p in model.parameters()]) == set()


def test_some_ranks_may_average_among_themselves() -> None:
    group = dist.new_group([0])
    assert averaged(lambda model: [dist.all_reduce(p.grad, group=group) for p in model.parameters()]) == set()


def test_a_later_backward_adds_the_gradients_of_one_rank() -> None:
    def average(model: Net) -> None:
        reduce(model.parameters())
        model(torch.randn(4, 4)).sum().backward()

    assert averaged(average) == set()
