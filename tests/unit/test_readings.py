"""Tests of readings: hyperparameters, step counters, schedules, modules, parameters, and the numbers of clipping."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Iterator

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

from observed_process import Seen, observing
from torch_version import TORCH
from traincheck.vocab.demand import NUMBERS, Demand
from traincheck.vocab.events import NO_CALL, Reading
from traincheck.vocab.facts import value_of

STEP, INIT = "torch.optim.Optimizer.step", "torch.optim.Optimizer.__init__"
FORWARD = "torch.nn.Module.forward"
SCHEDULE = "torch.optim.lr_scheduler.LRScheduler.step"
CLIP, CLIP_VALUE = "torch.nn.utils.clip_grad_norm_", "torch.nn.utils.clip_grad_value_"


class Deep(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.1))
        self.head = nn.Linear(4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x))


def learn(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    model(torch.randn(4, 3)).square().sum().backward()
    optimizer.step()


def of(seen: Seen, kind: str, attribute: str) -> list[Reading]:
    assert seen.faults == []
    return [r for r in seen.readings if (r.kind, r.attribute) == (kind, attribute)]


def values(readings: list[Reading]) -> list[object]:
    return [reading.value for reading in readings]


# -- hyperparameters -------------------------------------------------------------------------------------------------


def test_hyperparameters_are_reported_at_the_first_step_and_when_they_change() -> None:
    with observing() as seen:
        model = Deep()
        groups = [{"params": model.body.parameters(), "weight_decay": 0.5}, {"params": model.head.parameters()}]
        optimizer = torch.optim.AdamW(groups, lr=0.1, betas=(0.8, 0.9))
        for rate in (0.1, 0.1, 0.2):
            optimizer.param_groups[1]["lr"] = rate
            learn(model, optimizer)
    first, second, third = (call.seq for call in seen.named(STEP))
    rates = of(seen, "hyperparameter", "lr")
    assert [(r.call, r.variable[-3:], r.value) for r in rates] == [
        (first, "[0]", 0.1),
        (first, "[1]", 0.1),
        (third, "[1]", 0.2),
    ]
    assert {r.variable for r in rates} == {"AdamW.param_groups[0]", "AdamW.param_groups[1]"}
    assert values(of(seen, "hyperparameter", "weight_decay")) == [0.5, 0.01]
    assert values(of(seen, "hyperparameter", "betas")) == ["(0.8, 0.9)"] * 2
    assert values(of(seen, "hyperparameter", "amsgrad")) == [False] * 2
    assert "betas+" in str(of(seen, "hyperparameter", "keys")[0].value)
    assert all(r.seq > r.call for r in rates) and second not in {r.call for r in rates}


def test_settings_of_other_types() -> None:
    with observing() as seen:
        model = Deep()
        optimizer = torch.optim.Adam(model.parameters(), lr=torch.tensor(0.25), capturable=False, foreach=False)
        optimizer.param_groups[0]["owner"] = object()
        optimizer.param_groups[0]["schedule"] = [1, (2, "x")]
        learn(model, optimizer)
        optimizer.param_groups[0]["lr"].fill_(0.5)
        learn(model, optimizer)
    assert values(of(seen, "hyperparameter", "lr")) == [0.25, 0.5]
    assert values(of(seen, "hyperparameter", "schedule")) == ["(1, \"(2, 'x')\")"]
    assert not of(seen, "hyperparameter", "owner")
    assert "owner" in str(of(seen, "hyperparameter", "keys")[0].value)


def test_a_flag_that_becomes_a_number_counts_as_changed() -> None:
    with observing() as seen:
        model = Deep()
        optimizer = torch.optim.SGD(model.parameters(), lr=1)
        learn(model, optimizer)
        optimizer.param_groups[0]["nesterov"] = 0
        learn(model, optimizer)
    assert [type(value) for value in values(of(seen, "hyperparameter", "lr"))] == [int]


def test_an_optimizer_is_built_with_its_settings() -> None:
    with observing() as seen:
        model = Deep()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        learn(model, optimizer)
        learn(model, optimizer)
    (built,) = seen.named(INIT)
    args = dict(built.args)
    assert (args["class"], args["lr"], args["momentum"], args["nesterov"]) == ("torch.optim.SGD", 0.1, 0.9, False)
    assert not {"params", "keys"} & args.keys()
    (reading,) = of(seen, "optimizer", "class")
    assert (reading.variable, reading.value, reading.call) == ("SGD", "torch.optim.SGD", seen.named(STEP)[0].seq)


def test_step_counters() -> None:
    with observing() as seen:
        model = Deep()
        optimizer = torch.optim.Adam(model.parameters())
        learn(model, optimizer)
        learn(model, optimizer)
        model.head.weight.requires_grad_(False)
        learn(model, optimizer)
        plain = torch.optim.SGD(model.parameters(), lr=0.1)
        learn(model, plain)
    highest, lowest = of(seen, "optimizer_state", "step"), of(seen, "optimizer_state", "lowest_step")
    assert values(highest) == [1, 2, 3] and values(lowest) == [1, 2, 2]
    assert {(r.variable, r.role) for r in highest} == {("Adam", "live")}
    assert [r.call for r in highest] == [call.seq for call in seen.named(STEP)][:3]


# -- parameters ------------------------------------------------------------------------------------------------------


def test_parameters_are_reported_at_the_first_step_and_when_they_change() -> None:
    with observing() as seen:
        model = Deep()
        optimizer = torch.optim.SGD(model.head.parameters(), lr=0.1)
        learn(model, optimizer)
        model.body[0].bias.requires_grad_(False)
        learn(model, optimizer)
        model.body[0].bfloat16().float()
        learn(model, optimizer)
    first, second, _ = (call.seq for call in seen.named(STEP))
    recorded = of(seen, "parameter", "requires_grad")
    assert {r.variable: r.value for r in recorded if r.call == first} == dict.fromkeys(
        ("Deep.body.0.weight", "Deep.body.0.bias", "Deep.head.weight", "Deep.head.bias"), True
    )
    assert [(r.variable, r.value, r.call) for r in recorded if r.call != first] == [("Deep.body.0.bias", False, second)]
    assert {value_of(r.context, "kind") for r in recorded} == {"parameter"}
    assert {r.variable: value_of(r.context, "held") for r in recorded}["Deep.head.bias"] == "this"
    assert values(of(seen, "parameter", "dtype")) == ["float32"] * 4


def test_marks_and_ties_are_facts_of_a_parameter() -> None:
    with observing() as seen:
        model = Deep()
        weight, bias = model.head.weight, model.head.bias
        weight.tensor_model_parallel = True  # type: ignore[attr-defined]
        weight.sequence_parallel = False  # type: ignore[attr-defined]
        weight.partition_dim = 1  # type: ignore[attr-defined]
        weight.mode = "sharded"  # type: ignore[attr-defined]
        weight.uid = "3f0-9a"  # type: ignore[attr-defined]
        weight._private = True  # type: ignore[attr-defined]
        learn(model, torch.optim.SGD(model.parameters(), lr=0.1))
        bias.late = True  # type: ignore[attr-defined]
        learn(model, torch.optim.SGD(model.parameters(), lr=0.1))
    first, second = (call.seq for call in seen.named(STEP))
    recorded = {(c.call, c.variable): value_of(c.context, "attributes") for c in seen.changes if c.attribute == "data"}
    assert recorded[first, "Deep.head.weight"] == "mode=sharded+tensor_model_parallel"
    assert (recorded[first, "Deep.head.bias"], recorded[second, "Deep.head.bias"]) == ("", "late")
    assert {value_of(c.context, "tied") for c in seen.around(STEP)} == {False}


# -- schedules -------------------------------------------------------------------------------------------------------


def half(step: int, *, num_training_steps: int) -> float:
    return max(0.0, 1 - step / num_training_steps)


@pytest.mark.filterwarnings("ignore:Detected call of")
def test_schedulers_report_their_rate_progress_and_length() -> None:
    with observing() as seen:
        model = Deep()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.4)
        learn(model, optimizer)
        step_rate = lr_scheduler.StepLR(optimizer, 1, 0.5)
        for _ in range(2):
            step_rate.step()
        for scheduler in (
            lr_scheduler.CosineAnnealingLR(optimizer, 7),
            lr_scheduler.OneCycleLR(optimizer, 1.0, total_steps=9),
            lr_scheduler.LinearLR(optimizer, total_iters=5),
            lr_scheduler.LambdaLR(optimizer, functools.partial(half, num_training_steps=11)),
        ):
            scheduler.step()
    calls = {call.seq: call.receiver for call in seen.named(SCHEDULE)}
    rates = of(seen, "scheduler", "lr")
    assert values(rates)[:2] == pytest.approx([0.2, 0.1])
    assert all(calls[r.call] == r.variable for r in rates)
    assert values(of(seen, "scheduler", "last_epoch"))[:3] == [1, 2, 1]
    totals = {r.variable: (r.value, r.role) for r in of(seen, "scheduler", "total")}
    assert totals == {
        "CosineAnnealingLR": (7, "announced"),
        "OneCycleLR": (9, "announced"),
        "LinearLR": (5, "announced"),
        "LambdaLR": (11, "announced"),
    }


# -- modules ---------------------------------------------------------------------------------------------------------


def test_training_flags_are_reported_when_they_change() -> None:
    with observing() as seen:
        model, loss = Deep(), nn.MSELoss()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            loss(model(torch.ones(2, 3)), torch.ones(2, 1)).backward()
            optimizer.step()
        model.body.eval()
        model(torch.ones(2, 3))
        model.eval()
        model(torch.ones(2, 3))
    recorded = of(seen, "module", "training")
    names = ["Deep", "Deep.body", "Deep.body.0", "Deep.body.1", "Deep.head"]
    calls = [call.seq for call in seen.named(FORWARD) if call.receiver == "Deep"]
    assert [(r.call, r.variable, r.value) for r in recorded] == (
        [(calls[0], name, True) for name in names]
        + [(calls[2], name, False) for name in names[1:4]]
        + [(calls[3], name, False) for name in ("Deep", "Deep.head")]
    )
    assert [(r.variable, r.value) for r in of(seen, "module", "class")] == [("Deep", "test_readings.Deep")]
    assert [(r.variable, r.value) for r in of(seen, "module", "parameters")] == [("Deep", 3 * 4 + 4 + 4 + 1)]


def test_counting_parameters_is_no_call_of_the_program() -> None:
    with observing() as seen:
        model = Deep()
        learn(model, torch.optim.SGD(model.parameters(), lr=0.1))
    assert values(of(seen, "module", "parameters")) == [3 * 4 + 4 + 4 + 1]
    assert seen.named("torch.nn.functional.linear") and not seen.named("torch.Tensor.numel")


def test_a_forward_that_raises_leaves_the_next_one_outermost() -> None:
    with observing() as seen:
        model = Deep()
        with pytest.raises(RuntimeError):
            model(torch.ones(2, 7))
        model.eval()
        model(torch.ones(2, 3))
    assert values(of(seen, "module", "training")) == [True] * 5 + [False] * 5


def test_readings_of_unobserved_modules_are_recorded() -> None:
    with observing(Demand.of_readings("module.training")) as seen:
        Deep()(torch.ones(2, 3))
    assert {r.call for r in of(seen, "module", "training")} == {NO_CALL}
    assert {(r.kind, r.attribute) for r in seen.readings} == {("module", "training")}


# -- clipping --------------------------------------------------------------------------------------------------------


def with_gradients(scale: float = 3.0) -> nn.Linear:
    model = nn.Linear(3, 4)
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, scale)
    return model


def norm(model: nn.Module, kind: float = 2.0) -> float:
    return float(torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]).norm(kind))


def test_clipping_in_numbers() -> None:
    with observing() as seen:
        model, other = with_gradients(), with_gradients(100.0)
        assert float(nn.utils.clip_grad_norm_(model.parameters(), 6.0)) == pytest.approx(12.0)
        assert norm(model) == pytest.approx(6.0) and norm(other) == pytest.approx(400.0)
        nn.utils.clip_grad_norm_(parameters=model.parameters(), max_norm=50)
        nn.utils.clip_grad_norm_(model.weight, 1.0, math.inf)
        nn.utils.clip_grad_value_(other.parameters(), 5.0)
    assert seen.faults == []
    first, second, third = seen.named(CLIP)
    assert value_of(first.args, "max_norm") == 6.0
    assert value_of(first.result, "norm_before") == pytest.approx(12.0)
    assert value_of(first.result, "norm_after") == pytest.approx(6.0)
    assert value_of(first.result, "finite") is True
    assert value_of(second.args, "max_norm") == 50.0
    assert value_of(second.result, "norm_after") == pytest.approx(6.0)
    assert (value_of(third.args, "norm_type"), value_of(third.result, "norm_after")) == (math.inf, pytest.approx(1.0))
    (by_value,) = seen.named(CLIP_VALUE)
    assert value_of(by_value.args, "clip_value") == 5.0
    assert value_of(by_value.result, "norm_after") == pytest.approx(5.0)
    assert value_of(by_value.result, "norm_before") is None


@pytest.mark.parametrize("way", ["generator", "list", "filter", "values", "one"])
def test_clipping_accepts_every_way_of_passing_parameters(way: str) -> None:
    def handed(model: nn.Linear) -> object:
        return {
            "generator": (p for p in model.parameters()),
            "list": list(model.parameters()),
            "filter": filter(torch.is_tensor, model.parameters()),
            "values": dict(model.named_parameters()).values(),
            "one": model.weight,
        }[way]

    plain = with_gradients()
    total = nn.utils.clip_grad_norm_(handed(plain), 2.0)  # type: ignore[arg-type]
    with observing() as seen:
        model = with_gradients()
        observed = nn.utils.clip_grad_norm_(handed(model), 2.0)  # type: ignore[arg-type]
    assert torch.equal(total, observed)
    assert torch.equal(plain.weight.grad, model.weight.grad)  # type: ignore[arg-type]
    assert torch.equal(plain.bias.grad, model.bias.grad)  # type: ignore[arg-type]
    assert value_of(seen.named(CLIP)[0].result, "norm_after") == pytest.approx(2.0, rel=1e-5)


def test_clipping_of_nonfinite_and_missing_gradients() -> None:
    with observing() as seen:
        model = with_gradients(math.inf)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        with pytest.raises(RuntimeError, match="non-finite"):
            nn.utils.clip_grad_norm_(with_gradients(math.nan).parameters(), 1.0, error_if_nonfinite=True)
        nn.utils.clip_grad_norm_(nn.Linear(2, 2).parameters(), 1.0)
        with pytest.warns(UserWarning, match="empty generator") if TORCH >= (2, 8) else contextlib.nullcontext():
            nn.utils.clip_grad_norm_((p for p in []), 1.0)
    assert seen.faults == []
    infinite, raised, none, empty = seen.named(CLIP)
    assert dict(infinite.result) == {"finite": False}
    assert raised.end == NO_CALL
    assert value_of(none.result, "norm_after") == value_of(empty.result, "norm_after") == 0.0


def test_an_error_in_a_generator_of_the_program_reaches_the_program() -> None:
    def broken() -> Iterator[nn.Parameter]:
        yield nn.Parameter(torch.ones(2))
        raise ZeroDivisionError

    with observing() as seen, pytest.raises(ZeroDivisionError):
        nn.utils.clip_grad_norm_(broken(), 1.0)
    assert seen.faults == [] and [call.end for call in seen.named(CLIP)] == [NO_CALL]


def test_norms_are_measured_only_on_demand() -> None:
    for values, measured in (((), False), ((NUMBERS,), True)):
        with observing(Demand.of_calls(CLIP, values=values)) as seen:
            nn.utils.clip_grad_norm_(with_gradients().parameters(), 2.0)
        (call,) = seen.named(CLIP)
        assert value_of(call.args, "max_norm") == 2.0
        assert (value_of(call.result, "norm_after") is not None) is measured


# -- demand ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "attribute"),
    [
        ("hyperparameter", "lr"),
        ("hyperparameter", "keys"),
        ("optimizer", "class"),
        ("optimizer_state", "step"),
        ("optimizer_state", "lowest_step"),
        ("parameter", "requires_grad"),
        ("parameter", "dtype"),
        ("module", "parameters"),
        ("scheduler", "last_epoch"),
    ],
)
def test_only_demanded_attributes_are_read(kind: str, attribute: str) -> None:
    demand = Demand.of_calls(STEP, SCHEDULE) | Demand.of_readings(f"{kind}.{attribute}")
    with observing(demand) as seen:
        model = Deep()
        optimizer = torch.optim.Adam(model.parameters())
        scheduler = lr_scheduler.CosineAnnealingLR(optimizer, 7)
        learn(model, optimizer)
        scheduler.step()
    assert seen.faults == []
    assert {(r.kind, r.attribute) for r in seen.readings} == {(kind, attribute)}
