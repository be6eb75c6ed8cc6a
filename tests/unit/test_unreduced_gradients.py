"""Tests that gradients which ranks have not reduced yet count as made by the backward, but not as usable."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

from observed_process import observing
from traincheck.vocab.events import Change

fsdp = pytest.importorskip("torch.distributed.fsdp")
needs_shards = pytest.mark.skipif(not hasattr(fsdp, "fully_shard"), reason="this torch has no fully_shard")

BACKWARD, STEP = "torch.autograd.backward", "torch.optim.Optimizer.step"


def outcomes(changes: list[Change]) -> set[tuple[str, str, bool]]:
    return {(change.before, change.after, change.changed) for change in changes if change.attribute == "grad"}


@pytest.fixture(autouse=True)
def one_rank() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@needs_shards
@pytest.mark.parametrize("low", [False, True])
def test_a_backward_makes_gradients_that_are_reduced_later(low: bool) -> None:
    policy = fsdp.MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    with observing() as seen:
        model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1))
        options = {"mp_policy": policy} if low else {}
        fsdp.fully_shard(model, mesh=init_device_mesh("cpu", (1,)), **options)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for part in (1, 2, 3):
            model.set_requires_gradient_sync(part == 3)
            model(torch.full((2, 3), float(part))).sum().backward()
        optimizer.step()

    (window,) = [window for window in seen.windows if window.stage == "train"]
    calls = [call for call in window.calls if call.name == BACKWARD]
    assert [outcomes(window.changes_of[call.seq]) for call in calls] == [
        {("none", "some", True)},
        {("some", "some", True)},
        {("some", "some", True)},
    ]
    assert [change for change in window.changes_of.get(-1, []) if change.attribute == "grad"] == []
    assert all(change.changed for change in seen.around(STEP) if change.attribute == "data")


@needs_shards
def test_a_step_before_the_gradients_are_reduced_has_none() -> None:
    with observing() as seen:
        model = nn.Linear(3, 1)
        fsdp.fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model.set_requires_gradient_sync(False)
        model(torch.ones(2, 3)).sum().backward()
        optimizer.step()
    (call,) = seen.named(STEP)
    assert dict(call.context)["grads"] == "none"
    assert not any(change.changed for change in seen.around(STEP))


def test_gradients_that_a_wrapper_adds_up_in_buffers_of_its_own() -> None:
    """As Megatron does, with a hook for each gradient."""

    def add_up(parameter: torch.Tensor) -> None:
        parameter.main_grad.add_(parameter.grad)  # type: ignore[attr-defined]
        parameter.grad = None

    with observing() as seen:
        model = nn.Linear(3, 1)
        for parameter in model.parameters():
            parameter.main_grad = torch.zeros_like(parameter)  # type: ignore[attr-defined]
            parameter.register_post_accumulate_grad_hook(add_up)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            for parameter in model.parameters():
                parameter.main_grad.zero_()  # type: ignore[attr-defined]
            for part in (1, 2):
                model(torch.full((2, 3), float(part))).sum().backward()
            for parameter in model.parameters():
                parameter.grad = parameter.main_grad  # type: ignore[attr-defined]
            optimizer.step()
            optimizer.zero_grad()
    assert seen.faults == []
    for window in [window for window in seen.windows if window.stage == "train"]:
        calls = [call for call in window.calls if call.name == BACKWARD]
        assert [outcomes(window.changes_of[call.seq]) for call in calls] == [
            {("zero", "some", True)},
            {("some", "some", True)},
        ]
    assert all(change.changed for change in seen.around(STEP) if change.attribute == "data")


def test_parameters_that_a_framework_keeps_empty_between_calls() -> None:
    """As ZeRO 3 does. Others, of an earlier model, are no evidence of a backward without effect."""
    with observing() as seen:
        earlier, model = nn.Linear(3, 1), nn.Linear(3, 1)
        optimizers = [torch.optim.SGD(part.parameters(), lr=0.1) for part in (earlier, model)]
        earlier(torch.ones(2, 3)).sum().backward()
        optimizers[0].step()
        whole = [parameter.data for parameter in model.parameters()]
        for parameter in model.parameters():
            parameter.data = torch.empty(0)
        torch.zeros(1, requires_grad=True).sum().backward()
        for parameter, data in zip(model.parameters(), whole, strict=True):
            parameter.data = data
        model(torch.ones(2, 3)).sum().backward()
    assert seen.faults == []
    counts = [
        sum(change.call == call.seq and change.attribute == "grad" for change in seen.changes)
        for call in seen.named(BACKWARD)
    ]
    assert counts == [4, 0, 4]
