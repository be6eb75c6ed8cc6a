"""Tests that an update on copies equals the real one and modifies nothing."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

from traincheck.sources.replay import update_replay
from traincheck.sources.replay.fingerprints import CannotReplay
from traincheck.sources.replay.update_replay import CapturedUpdate

OPTIMIZERS: list[tuple[type[torch.optim.Optimizer], dict[str, Any]]] = [
    (torch.optim.SGD, {"lr": 0.1}),
    (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
    (torch.optim.Adam, {"amsgrad": True}),
    (torch.optim.AdamW, {"foreach": True}),
    (torch.optim.AdamW, {"fused": True}),
    (torch.optim.RMSprop, {"centered": True, "momentum": 0.5}),
    (torch.optim.Adagrad, {"maximize": True}),
]


def ready(cls: type[torch.optim.Optimizer], settings: dict[str, Any]) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    optimizer = cls(model.parameters(), **settings)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).square().sum().backward()
        optimizer.step()
    return model, optimizer


def name_of(parameter: torch.Tensor) -> str:
    return "x".join(map(str, parameter.shape))


@pytest.mark.parametrize(("cls", "settings"), OPTIMIZERS, ids=lambda case: getattr(case, "__name__", ""))
def test_an_update_on_copies_is_the_real_one(cls: type[torch.optim.Optimizer], settings: dict[str, Any]) -> None:
    model, optimizer = ready(cls, settings)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    counted: list[object] = []
    optimizer.register_step_pre_hook(lambda *_: counted.append(1))
    before = [tensor.clone() for tensor in (*model.parameters(), *(p.grad for p in model.parameters()))]
    update = CapturedUpdate("optimizer", optimizer, name_of)
    first, second = update.execute(), update.execute()
    after = [*model.parameters(), *(p.grad for p in model.parameters())]
    assert all(torch.equal(tensor, other) for tensor, other in zip(before, after, strict=True))
    assert not counted
    optimizer.step()
    scheduler.step()
    assert counted == [1]
    real = update.real_result()
    assert real.first_difference(first) is None and first.first_difference(second) is None
    assert len(real.updates.resolve()) >= 4
    with torch.no_grad():
        model[0].weight.view(torch.int32)[0, 0] ^= 1
    assert update.real_result().first_difference(first) == ("update", "4x4")


@pytest.mark.parametrize(("cls", "settings"), OPTIMIZERS, ids=lambda case: getattr(case, "__name__", ""))
def test_parameters_of_a_large_model_take_turns(
    cls: type[torch.optim.Optimizer], settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(update_replay, "MIN_BYTES", 100)
    _, optimizer = ready(cls, settings)
    optimizer.add_param_group({"params": [nn.Parameter(torch.ones(50))], "lr": 0.2})
    begin, updated = 0, list[str]()
    for _ in range(5):
        update = CapturedUpdate("optimizer", optimizer, name_of, begin)
        again = update.execute()
        optimizer.step()
        assert update.real_result().first_difference(again) is None
        names = [name for name in again.updates.resolve() if " of " not in name]
        sizes = [math.prod(map(int, name.split("x"))) * 4 for name in names]
        assert len(names) == 1 or sum(sizes) <= 100
        updated += names
        begin = update.next
    assert {"4x4", "4", "2x4", "2", "50"} <= set(updated)


def test_parameters_that_are_too_large_to_be_copied_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    _, optimizer = ready(torch.optim.SGD, {"lr": 0.1})
    monkeypatch.setattr(update_replay, "MAX_BYTES", 127)
    update = CapturedUpdate("optimizer", optimizer, name_of)
    again = update.execute()
    optimizer.step()
    assert set(again.updates.resolve()) == {"4", "2x4", "2"} and update.real_result().first_difference(again) is None
    monkeypatch.setattr(update_replay, "MAX_BYTES", 1)
    with pytest.raises(CannotReplay, match="too large to be copied"):
        CapturedUpdate("optimizer", optimizer, name_of)


def test_unsupported_calls_are_refused() -> None:
    model, _ = ready(torch.optim.SGD, {"lr": 0.1})

    class Own(torch.optim.SGD):
        pass

    for optimizer, reason in (
        (Own(model.parameters(), lr=0.1), "not an optimizer of torch's"),
        (torch.optim.LBFGS(model.parameters()), "closure"),
    ):
        with pytest.raises(CannotReplay, match=reason):
            CapturedUpdate("optimizer", optimizer, name_of)
