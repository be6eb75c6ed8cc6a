"""A pipeline is compared with a run on one rank: its stages are joined to one model."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable, Sequence
from functools import cache
from typing import NamedTuple

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from recorded_operations import recorded
from traincheck.comparison.difference import DIFFERENT, ROUNDING, SAME
from traincheck.comparison.run_comparison import Comparison, compare_steps
from traincheck.comparison.stages import stages_of
from traincheck.vocab.operations import ACCUMULATED, StepOperations

WIDTH, PARTS, STEPS = 8, 4, 2


class Net(nn.Module):
    """A part of four layers, or all of them. `first` is the number of the first layer."""

    def __init__(self, layers: Sequence[nn.Module], first: int = 0, scale: float = 1.0) -> None:
        super().__init__()
        self.layers = nn.ModuleDict({str(first + number): layer for number, layer in enumerate(layers)})
        self.scale = scale

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers.values():
            x = layer(x).tanh()
        return x * self.scale if self.scale != 1 else x


class Port(NamedTuple):
    """A pipeline, and what is wrong with it."""

    first: int = 0
    """The number of the first layer of the second stage."""
    interleaved: bool = True
    """Whether the backward of a micro-batch precedes the forward of the next but one (1F1B)."""
    scale: float = 1.0
    divisor: int = PARTS
    shift: int = 0
    """By how many micro-batches the targets are late."""


def layers() -> list[nn.Module]:
    torch.manual_seed(0)
    return [nn.Linear(WIDTH, WIDTH) for _ in range(4)]


def batches() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(8, WIDTH, generator=generator) for _ in range(STEPS)]


def update(optimizer: torch.optim.Optimizer, model: nn.Module, norm: float | None) -> None:
    """Clip gradients, and step. `norm` is that of all stages, None if it is that of the model."""
    if norm is None:
        nn.utils.clip_grad_norm_(model.parameters(), 0.01)
    else:
        nn.utils.get_total_norm([each.grad for each in model.parameters()])
        nn.utils.clip_grads_with_norm_(model.parameters(), 0.01, torch.tensor(norm))
    optimizer.step()
    optimizer.zero_grad()


@cache
def one_rank() -> tuple[tuple[StepOperations, ...], tuple[float, ...]]:
    """A run on one rank, and the norm of its gradients in each step."""
    gc.collect()
    model, steps, norms = Net(layers()), [], []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with recorded(steps):
        for batch in batches():
            F.mse_loss(model(batch), batch).backward()
            norms.append(float(torch.cat([each.grad.flatten() for each in model.parameters()]).norm()))
            update(optimizer, model, None)
    return tuple(steps), tuple(norms)


def stage(rank: int, port: Port) -> Net:
    return Net(layers()[:2]) if rank == 0 else Net(layers()[2:], port.first, port.scale)


def loss_of(output: torch.Tensor, parts: Sequence[torch.Tensor], number: int, port: Port) -> torch.Tensor:
    return F.mse_loss(output, parts[number - port.shift]) / port.divisor


def exchanged(port: Port) -> list[list[tuple[torch.Tensor, torch.Tensor]]]:
    """What the stages send in each step, for each micro-batch: an activation, and its gradient."""
    norms = one_rank()[1]
    stages = [stage(rank, port) for rank in range(2)]
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.1) for each in stages]
    sent = []
    for batch, norm in zip(batches(), norms, strict=True):
        parts, pairs = batch.chunk(PARTS), []
        for number, part in enumerate(parts):
            output = stages[0](part)
            arrived = output.detach().clone().requires_grad_()
            loss_of(stages[1](arrived), parts, number, port).backward()
            output.backward(arrived.grad)
            pairs.append((arrived.detach(), arrived.grad))
        sent.append(pairs)
        for optimizer, model in zip(optimizers, stages, strict=True):
            update(optimizer, model, norm)
    return sent


def run_stage(rank: int, port: Port) -> list[StepOperations]:
    """Record one stage, which gets what the other sends."""
    sent = copy.deepcopy(exchanged(port))
    gc.collect()  # else the models of the exchange are living, and have the first names
    model, steps = stage(rank, port), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with recorded(steps):
        for batch, norm, pairs in zip(batches(), one_rank()[1], sent, strict=True):
            parts, waiting = batch.chunk(PARTS), []
            for number, part in enumerate(parts):
                if rank == 0:
                    output = model(part)
                    waiting.append((output, pairs[number][1]))
                else:
                    output = loss_of(model(pairs[number][0].requires_grad_()), parts, number, port)
                    waiting.append((output, None))
                while port.interleaved and len(waiting) > 1:
                    torch.autograd.backward(*waiting.pop(0))
            for each in waiting:
                torch.autograd.backward(*each)
            update(optimizer, model, norm)
    return steps


def compared(port: Port) -> Comparison:
    ranks = zip(*(run_stage(rank, port) for rank in range(2)), strict=True)
    return compare_steps([(step,) for step in one_rank()[0]], list(ranks))


@pytest.mark.parametrize(
    "port", [Port(), Port(first=2), Port(interleaved=False)], ids=["restarted", "numbered", "all forwards first"]
)
def test_a_right_pipeline_is_equal(port: Port) -> None:
    comparison = compared(port)
    assert comparison.result in (SAME, ROUNDING), comparison.origins[:1]
    assert len(comparison.steps) == STEPS
    compared_operations = comparison.steps[0].same + comparison.steps[0].rounding
    assert compared_operations >= len(one_rank()[0][0].operations) - 3, "most operations have a partner"


def test_the_names_of_a_later_stage_are_matched() -> None:
    renamed = compared(Port()).renamed
    assert renamed["Net[rank 1].layers.0.weight"] == "Net.layers.2.weight"


@pytest.mark.parametrize(
    ("port", "is_named"),
    [
        (Port(scale=1.5), lambda origin: origin.operation.name == "mul"),
        (Port(shift=1), lambda origin: origin.operation.name.startswith("mse_loss") and origin.inputs < 1e-4),
        (Port(divisor=1), lambda origin: origin.operation.name == ACCUMULATED),
    ],
    ids=["scale", "order", "not averaged"],
)
def test_an_error_in_a_pipeline_is_named(port: Port, is_named: Callable[[object], bool]) -> None:
    comparison = compared(port)
    assert comparison.result == DIFFERENT
    assert comparison.origins[0].step == 1 and is_named(comparison.origins[0]), comparison.origins[0]


def test_ranks_with_the_same_layers_are_no_pipeline() -> None:
    steps = one_rank()[0]
    assert stages_of((steps[0], steps[1])) == ((0, 1),)
    first, second = (run_stage(rank, Port())[0] for rank in range(2))
    assert stages_of((first, second)) == ((0,), (1,))
    assert stages_of((first, first, second, second)) == ((0, 1), (2, 3))
