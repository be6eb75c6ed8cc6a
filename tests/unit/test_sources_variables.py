"""Tests of the records of parameters, gradients and optimizer state, and of the calls that change them."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.distributed.fsdp as fsdp
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import debugging_hooks, default_hooks, post_localSGD_hook
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

from observed_process import observing
from traincheck.sources.modules.variables import VariableCatalog
from traincheck.sources.tensors.deferred_values import simulated_accelerator
from traincheck.vocab.demand import EVERYTHING
from traincheck.vocab.events import NO_CALL, Change
from traincheck.vocab.facts import value_of

STEP, ZERO_GRAD = "torch.optim.Optimizer.step", "torch.optim.Optimizer.zero_grad"
BACKWARD = "torch.autograd.backward"
FORWARD = "torch.nn.Module.forward"
CLIP = "torch.nn.utils.clip_grad_norm_"
SCHEDULE = "torch.optim.lr_scheduler.LRScheduler.step"
NEXT = "torch.utils.data.DataLoader.__next__"


class Sole(nn.Module):
    """A model whose class name no other test uses."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(3, 3)
        self.head = nn.Linear(3, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.relu(self.body(x)))


def learn(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step()


def recorded(changes: list[Change], attribute: str) -> dict[str, tuple[str, str, bool]]:
    """Before, after and changed by variable."""
    return {change.variable: change[5:8] for change in changes if f"{change.kind}.{change.attribute}" == attribute}


def fact(change: Change, name: str) -> object:
    return value_of(change.context, name)


# -- optimizers ------------------------------------------------------------------------------------------------------


def test_an_optimizer_is_built_steps_and_clears() -> None:
    torch.manual_seed(0)  # some weights leave no unit of the body active, and with it no gradient
    with observing() as seen:
        model = Sole()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        learn(model, optimizer)
        optimizer.zero_grad()
    assert [call.name for call in seen.named("torch.optim.Optimizer.__init__")] == ["torch.optim.Adam.__init__"]
    (step,) = seen.named(STEP)
    assert step.levels == ("torch.optim.Adam.step", STEP)
    assert (step.receiver, step.kind, step.end > step.seq) == ("Adam", "lifecycle", True)
    assert dict(step.context) == {
        "autocast": "off",
        "closure": False,
        "grad_mode": "on",
        "grads": "some",
        "lost": False,
        "lr": "positive",
    }
    names = {"Sole.body.weight", "Sole.body.bias", "Sole.head.weight", "Sole.head.bias"}
    assert recorded(seen.around(STEP), "parameter.data").keys() == names
    assert recorded(seen.around(STEP), "parameter.data")["Sole.head.bias"] == ("some", "some", True)
    entries = recorded(seen.around(STEP), "optimizer_state.data")
    assert entries["Sole.head.bias:exp_avg"] == ("none", "some", True)
    assert recorded(seen.around(ZERO_GRAD), "parameter.grad") == dict.fromkeys(names, ("some", "none", True))
    assert value_of(seen.named(ZERO_GRAD)[0].context, "set_to_none") is True


def test_zeroed_gradients_and_missing_gradients() -> None:
    with observing() as seen:
        model = Sole()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer.zero_grad(set_to_none=False)
        model(torch.ones(2, 3)).sum().backward()
        optimizer.zero_grad(set_to_none=False)
    first, second = seen.named(ZERO_GRAD)
    around = {call.seq: [c[5:8] for c in seen.changes if c.call == call.seq] for call in (first, second)}
    assert around[first.seq] == [("none", "none", False)] * 4
    assert set(around[second.seq]) == {("some", "zero", True)} | (
        set(around[second.seq]) & {("zero", "zero", False)}  # a unit of relu may be dead
    )
    assert value_of(first.context, "grads") == "none"


def test_holders_and_owners_of_a_parameter() -> None:
    with observing() as seen:
        model = Sole()
        stray = nn.Parameter(torch.ones(3))
        first = torch.optim.SGD([model.body.weight, stray], lr=0.1)
        second = torch.optim.SGD([model.head.weight], lr=0.1)
        (model(torch.ones(2, 3)).sum() + stray.sum()).backward()
        first.step()
        second.step()
    step_of_first, step_of_second = seen.named(STEP)
    assert (step_of_first.receiver, step_of_second.receiver) == ("SGD", "SGD#2")
    of_first = {change.variable: change for change in seen.changes if change.call == step_of_first.seq}
    held = {name: (fact(change, "held"), fact(change, "owned"), change.owner) for name, change in of_first.items()}
    assert held["Sole.body.weight"] == ("this", True, "SGD")
    assert held["SGD.param_groups[0][1]"] == ("this", False, "SGD")
    assert held["Sole.head.bias"] == ("none", True, "")
    assert "Sole.head.weight" not in held  # the other optimizer's
    assert fact(of_first["Sole.head.bias"], "lr") == "none"
    backward = {change.variable: fact(change, "held") for change in seen.around(BACKWARD)}
    assert backward["Sole.head.weight"] == "this" and backward["Sole.head.bias"] == "none"


class TwoHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.left, self.right = nn.Linear(3, 3), nn.Linear(3, 1), nn.Linear(3, 1)

    def forward(self, x: torch.Tensor, side: str) -> torch.Tensor:
        return getattr(self, side)(self.body(x))


def test_a_head_that_is_not_called_is_unused_and_one_that_is_cut_off_is_not() -> None:
    with observing() as seen:
        model = TwoHeads()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(torch.ones(2, 3), "left").sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        model(torch.ones(2, 3), "left")
        model(torch.ones(2, 3), "right").sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        optimizer.step()  # with nothing to learn from
    first, second, third = seen.named(STEP)
    grads = {
        call.seq: {c.variable: fact(c, "grad") for c in seen.changes if c.call == call.seq and c.attribute == "data"}
        for call in (first, second, third)
    }
    assert grads[first.seq]["TwoHeads.right.weight"] == "unused"
    assert grads[second.seq]["TwoHeads.left.weight"] == "none"
    assert set(grads[third.seq].values()) == {"unused"}
    assert [value_of(call.context, "grads") for call in (first, second, third)] == ["mixed", "mixed", "unused"]


def test_a_head_that_another_optimizer_updates_is_unused() -> None:
    with observing() as seen:
        model = TwoHeads()
        both = torch.optim.SGD(model.parameters(), lr=0.1)
        right = torch.optim.SGD(model.right.parameters(), lr=0.1)
        for _ in range(2):
            for side, optimizer in (("left", both), ("right", right)):
                model(torch.ones(2, 3), "left")
                model(torch.ones(2, 3), "right")
                model(torch.ones(2, 3), side).sum().backward()
                optimizer.step()
                both.zero_grad()
        model(torch.ones(2, 3), "right")
        model(torch.ones(2, 3), "left").sum().backward()
        both.step()
        both.zero_grad()
        model(torch.ones(2, 3), "right")
        model(torch.ones(2, 3), "left").sum().backward()
        both.step()  # nobody has updated the other head since
    steps = [call for call in seen.named(STEP) if call.receiver == "SGD"]
    grads = [
        next(fact(c, "grad") for c in seen.changes if c.call == call.seq and c.variable == "TwoHeads.right.weight")
        for call in steps
    ]
    assert grads == ["unused", "unused", "unused", "none"]


def test_an_optimizer_at_the_address_of_a_deleted_one_is_distinct() -> None:
    def some() -> list[torch.optim.SGD]:
        return [torch.optim.SGD([torch.zeros(1)], lr=0.1) for _ in range(100)]

    catalog = VariableCatalog()
    first = some()
    names = [catalog.add_optimizer(optimizer) for optimizer in first]
    addresses = {id(optimizer) for optimizer in first}
    del first
    gc.collect()
    assert list(catalog.optimizers()) == []
    later: list[torch.optim.SGD] = []
    while not addresses & {id(optimizer) for optimizer in later} and len(later) < 10_000:
        later += some()  # until Python uses the memory of a deleted one again
    assert addresses & {id(optimizer) for optimizer in later}
    names += [catalog.add_optimizer(optimizer) for optimizer in later]
    assert len(set(names)) == 100 + len(later)


def test_an_optimizer_that_holds_replaced_parameters_is_not_just_unused() -> None:
    with observing() as seen:
        model = Sole()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(torch.ones(2, 3))
        model.head = nn.Linear(3, 1)
        other = torch.optim.SGD(model.head.parameters(), lr=0.1)
        model.body.requires_grad_(False)
        model(torch.ones(2, 3)).sum().backward()
        optimizer.step()
        other.step()
    (step, _) = seen.named(STEP)
    of = {change.variable: change for change in seen.changes if change.call == step.seq}
    stale = of["Sole.head.weight (replaced)"]
    assert (fact(stale, "grad"), fact(stale, "owned"), fact(stale, "held")) == ("none", False, "this")
    assert value_of(step.context, "grads") == "none"


@pytest.mark.parametrize("written", [True, False])
def test_parameters_written_back_are_recorded_at_the_end_of_the_step(written: bool) -> None:
    with observing() as seen:
        model = Sole()
        masters = [param.detach().clone().requires_grad_() for param in model.parameters()]
        optimizer = torch.optim.SGD(masters, lr=0.1)
        for _ in range(2):
            model(torch.ones(2, 3)).square().sum().backward()
            for param, master in zip(model.parameters(), masters, strict=True):
                master.grad, param.grad = param.grad, None
            optimizer.step()
            if written:
                with torch.no_grad():
                    for param, master in zip(model.parameters(), masters, strict=True):
                        param.copy_(master)
    late = [c for c in seen.changes if c.call == NO_CALL and c.attribute == "data"]
    assert {c.changed for c in late if c.variable == "Sole.head.bias"} == {written}
    assert len([c for c in late if c.variable == "Sole.head.bias"]) == 2
    assert all(fact(c, "held") == "none" for c in late)
    steps = [step for window in seen.windows for step in [window.step] if any(c in window.changes for c in late)]
    assert steps == [1, 2]


def test_frozen_parameters_learning_rates_and_closures() -> None:
    with observing() as seen:
        model = Sole()
        model.body.requires_grad_(False)
        nn.init.zeros_(model.head.bias)  # where even a tiny update is not lost in rounding
        groups = [{"params": model.body.parameters(), "lr": 0.0}, {"params": model.head.parameters(), "lr": 1e-9}]
        optimizer = torch.optim.SGD(groups, lr=0.1)
        model(torch.ones(2, 3)).sum().backward()
        optimizer.step(lambda: 0.0)
    (step,) = seen.named(STEP)
    assert value_of(step.context, "closure") is True
    assert (value_of(step.context, "grads"), value_of(step.context, "lr")) == ("mixed", "negligible")
    of = {change.variable: change for change in seen.around(STEP)}
    body, head = of["Sole.body.weight"], of["Sole.head.bias"]
    assert (fact(body, "requires_grad"), fact(body, "grad"), fact(body, "lr"), body.changed) == (
        False,
        "none",
        "zero",
        False,
    )
    assert (fact(head, "requires_grad"), fact(head, "grad"), fact(head, "lr")) == (True, "some", "negligible")
    assert fact(head, "scalar") is True and fact(head, "precision") == "full"


@pytest.mark.parametrize(("rate", "lost"), [(0.0, True), (1e-9, True), (0.1, False)])
def test_the_update_of_gradients_from_a_closure_may_be_lost_in_rounding(rate: float, lost: bool) -> None:
    with observing() as seen:
        model = Sole()
        nn.init.ones_(model.head.bias)
        optimizer = torch.optim.SGD(model.parameters(), lr=rate)

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = model(torch.ones(2, 3)).sum()
            loss.backward()
            return loss

        optimizer.step(closure)
    (bias,) = [
        change for change in seen.around(STEP) if change.variable == "Sole.head.bias" and change.attribute == "data"
    ]
    assert (bias.changed, fact(bias, "lost")) == (not lost, lost)


def test_parameters_that_no_optimizer_changes_are_recorded_as_unchanged() -> None:
    with observing() as seen:
        model = Sole()
        copies = [nn.Parameter(parameter.detach().clone()) for parameter in model.parameters()]
        optimizer = torch.optim.SGD(copies, lr=0.1)
        learn(model, optimizer)
    changed = {change.variable: change.changed for change in seen.around(STEP)}
    assert changed == dict.fromkeys((f"SGD.param_groups[0][{index}]" for index in range(4)), False) | dict.fromkeys(
        ("Sole.body.weight", "Sole.body.bias", "Sole.head.weight", "Sole.head.bias"), False
    )


def test_a_parameter_without_elements_is_not_recorded() -> None:
    with observing() as seen:
        model = Sole()
        model.rest = nn.Parameter(torch.empty(0))  # of a parameter in parts, a rank may hold none
        learn(model, torch.optim.SGD(model.parameters(), lr=0.1))
    assert "Sole.body.weight" in recorded(seen.around(STEP), "parameter.data")
    assert not any(change.variable == "Sole.rest" for window in seen.windows for change in window.changes)


def test_tied_weights_are_one_variable_with_aliases() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.out = nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False)
            self.out.weight = self.embed.weight

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.out(self.embed(x))

    with observing() as seen:
        model = Tied()
        learn(model, torch.optim.SGD(model.parameters(), lr=0.1))
        (source,) = (source for source in seen.sources if source.name == "optimizers")
        variable = source._catalog.find(model.embed.weight)  # type: ignore[attr-defined]
    assert variable.aliases == ("Tied.embed.weight", "Tied.out.weight")
    assert [change.variable for change in seen.around(STEP)] == ["Tied.embed.weight"]
    assert [fact(change, "tied") for change in seen.around(STEP)] == [True]
    assert model.out.weight is model.embed.weight


def test_a_group_added_later_is_held() -> None:
    with observing() as seen:
        model = Sole()
        optimizer = torch.optim.SGD(model.body.parameters(), lr=0.1)
        learn(model, optimizer)
        optimizer.add_param_group({"params": model.head.parameters()})
        learn(model, optimizer)
    held = [
        {change.variable: fact(change, "held") for change in seen.changes if change.call == call.seq}
        for call in seen.named(STEP)
    ]
    assert (held[0]["Sole.head.weight"], held[1]["Sole.head.weight"]) == ("none", "this")


# -- gradients -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scaled", [True, False])
def test_a_backward_after_float16_autocast_records_whether_the_loss_was_scaled(scaled: bool) -> None:
    with observing() as seen:
        model = Sole()
        scaler = torch.amp.GradScaler("cpu", enabled=scaled)
        with torch.autocast("cpu", dtype=torch.float16):
            loss = model(torch.ones(2, 3)).float().sum()
        scaler.scale(loss / 2).backward()
        (model(torch.ones(2, 3)).sum() * 0.5).backward()
    half, full = seen.named(BACKWARD)
    assert [value_of(call.context, "half") for call in (half, full)] == [True, False]
    assert [value_of(call.result, "scaled") for call in (half, full)] == [scaled, False]


SCALER = "torch.amp.GradScaler"


def scaled_steps(scaler: torch.amp.GradScaler) -> None:
    model = Sole()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        scaler.scale(model(torch.ones(2, 3)).sum()).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()


@pytest.mark.parametrize("elsewhere", [False, True])
@pytest.mark.parametrize(("scale", "changes"), [(1.0, set()), (3.0, {("some", "some", True)})])
def test_gradients_unscaled_by_one_are_not_recorded_as_unchanged(
    scale: float, changes: set[object], elsewhere: bool
) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=scale)
    with simulated_accelerator() if elsewhere else nullcontext(), observing() as seen:
        scaled_steps(scaler)
    assert seen.faults == []
    assert [len(seen.named(f"{SCALER}.{method}")) for method in ("scale", "unscale_", "step", "update")] == [3] * 4
    assert {change[5:8] for change in seen.around(f"{SCALER}.unscale_") if change.before != "zero"} == changes
    assert len(seen.around(CLIP)) == len(seen.around(STEP)) > 0


def test_the_methods_of_a_disabled_scaler_are_no_calls_and_its_steps_are_counted() -> None:
    with observing() as seen:
        scaled_steps(torch.amp.GradScaler("cpu", enabled=False))
    assert not [call for call in seen.calls if SCALER in call.name]
    assert [step for stage, step in seen.stages if stage == "train"] == [1, 2, 3]
    assert len(seen.named(STEP)) == 3


def test_backward_fills_gradients_and_clipping_changes_them() -> None:
    with observing() as seen:
        model = Sole()
        with torch.no_grad():
            model.body.weight.fill_(1.0)  # all units alive
        (model(torch.ones(2, 3)).sum() * 100).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        (model(torch.ones(2, 3)).sum() * 0).backward()
    first, second = seen.named(BACKWARD)
    assert {change[5:8] for change in seen.changes if change.call == first.seq} == {("none", "some", True)}
    assert {change[5:8] for change in seen.around(CLIP)} == {("some", "some", True)}
    assert {change[5:8] for change in seen.changes if change.call == second.seq} == {("some", "some", False)}
    assert [value_of(call.context, "grads") for call in (first, second)] == ["none", "some"]


def test_gradients_cleared_by_hand_are_changes_outside_calls() -> None:
    with observing() as seen:
        model = Sole()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            learn(model, optimizer)
            for parameter in model.parameters():
                parameter.grad = None
    by_hand = [change for change in seen.changes if change.call == NO_CALL]
    assert {change.variable for change in by_hand} == {
        "Sole.body.weight",
        "Sole.body.bias",
        "Sole.head.weight",
        "Sole.head.bias",
    }
    assert {change[5:8] for change in by_hand} <= {("some", "none", True), ("zero", "none", True)}
    assert {change.owner for change in by_hand} == {"SGD"}


def test_a_module_clears_its_own_gradients() -> None:
    with observing() as seen:
        model = Sole()
        model(torch.ones(2, 3)).sum().backward()
        model.head.zero_grad()
    (clear,) = seen.named("torch.nn.Module.zero_grad")
    assert clear.receiver == "Sole.head"
    assert recorded(seen.around("torch.nn.Module.zero_grad"), "parameter.grad").keys() == {
        "Sole.head.weight",
        "Sole.head.bias",
    }


@pytest.mark.filterwarnings("ignore:Using backward")
def test_backward_with_its_arguments_and_autograd_grad() -> None:
    with observing() as seen:
        x = torch.ones(3, requires_grad=True)
        x.square().sum().backward(retain_graph=True, create_graph=True)
        torch.autograd.grad(x.square().sum(), x, create_graph=True)
        x.grad = None
    assert {name: value_of(seen.named(BACKWARD)[0].context, name) for name in ("retain_graph", "create_graph")} == {
        "retain_graph": True,
        "create_graph": True,
    }
    assert value_of(seen.named("torch.autograd.grad")[0].context, "create_graph") is True


def scale_down(gradients: list[torch.Tensor], factor: float) -> None:
    for gradient in gradients:
        gradient.mul_(factor)


def bound(parameters: Iterable[torch.Tensor], max_norm: float, *, wrongly: bool = False) -> torch.Tensor:
    """Clipping as programs write it."""
    gradients = [param.grad for param in parameters if param.grad is not None]
    norm = torch.stack([gradient.norm() for gradient in gradients]).norm()
    factor = (max_norm / (norm + 1e-6)).clamp(**{"min" if wrongly else "max": 1.0})
    scale_down(gradients, factor)
    return norm


def is_too_large(parameters: Iterable[torch.Tensor], max_norm: float) -> bool:
    return bool(torch.stack([param.grad.norm() for param in parameters]).norm() > max_norm)


@pytest.mark.parametrize("wrongly", [False, True])
def test_a_function_with_a_max_norm_is_recorded_as_clipping(wrongly: bool) -> None:
    with observing() as seen:
        model = Sole()
        nn.init.ones_(model.head.bias)
        (100 * model(torch.ones(2, 3))).sum().backward()
        before = [param.grad.clone() for param in model.parameters()]
        is_too_large(model.parameters(), max_norm=0.5)
        bound(model.parameters(), max_norm=0.5, wrongly=wrongly)
        after = [param.grad for param in model.parameters()]
    assert wrongly == all(map(torch.equal, before, after))
    (call,) = seen.named(CLIP)
    norm = value_of(call.result, "norm_after")
    assert value_of(call.args, "max_norm") == 0.5
    assert norm > 1 if wrongly else norm == pytest.approx(0.5, rel=1e-3)
    assert seen.faults == []


class Updater:
    """Clips in a method without arguments, as engines do."""

    def __init__(self, parameters: Iterable[torch.Tensor], leave_out: int, *, separately: bool) -> None:
        self.parameters = list(parameters)
        self.optimizer = torch.optim.SGD(self.parameters, lr=0.1)
        self.max_grad_norm = 0.5
        self.leave_out, self.separately = leave_out, separately

    def clip_gradients(self) -> None:
        gradients = [param.grad for param in self.parameters if param.grad is not None]
        norms = torch.stack([gradient.norm() for gradient in gradients])
        for gradient, norm in list(zip(gradients, norms, strict=True))[self.leave_out :]:
            gradient.mul_((self.max_grad_norm / (norm if self.separately else norms.norm())).clamp(max=1))


@pytest.mark.parametrize(
    ("leave_out", "separately", "recorded"),
    [
        (0, False, [(True, None)]),
        (1, False, [(False, "Linear.weight")]),
        (0, True, [(None, None)]),
        (9, False, []),
    ],
    ids=["all", "one is left out", "each by itself", "none"],
)
def test_a_clipping_method_records_whether_it_scales_all_gradients_by_one_factor(
    leave_out: int, separately: bool, recorded: list[tuple[bool | None, str | None]]
) -> None:
    with observing() as seen:
        model = nn.Linear(3, 2)
        bystander = nn.Linear(3, 2)
        updater = Updater(model.parameters(), leave_out, separately=separately)
        (100 * model(torch.ones(2, 3)) + bystander(torch.ones(2, 3))).sum().backward()
        updater.clip_gradients()
    calls = seen.named(CLIP)
    assert [(value_of(call.result, "alike"), value_of(call.result, "left_out")) for call in calls] == recorded
    assert all(value_of(call.args, "max_norm") == 0.5 for call in calls)
    assert seen.faults == []


def test_a_parameter_on_a_mesh_records_whether_it_is_replicated() -> None:
    class Placed:
        def __init__(self, *, whole: bool) -> None:
            self.whole = whole

        def is_replicate(self) -> bool:
            return self.whole

    catalog = VariableCatalog()
    for whole, recorded in (((True,), True), ((True, False), False), ((), None)):
        parameter = nn.Parameter(torch.ones(2))
        if whole:
            parameter._local_tensor, parameter.placements = (
                parameter.data,
                [Placed(whole=is_whole) for is_whole in whole],
            )
        variable = catalog._add(parameter, "w", owned=True)
        assert value_of(variable.facts(parameter, "none"), "replicated") is recorded


@pytest.fixture
def process_group(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("process_group")
def test_a_wrapper_that_averages_gradients_marks_its_parameters() -> None:
    def averaged(model: nn.Module) -> set[str]:
        catalog = VariableCatalog()
        catalog.live_modules.add(model)
        catalog.refresh_modules()
        return {variable.name for variable, _ in catalog.living() if variable.data_parallel}

    class Engine(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model, self.head = DistributedDataParallel(nn.Linear(2, 2)), nn.Linear(2, 1)

    assert averaged(Engine()) == {"Engine.model.module.weight", "Engine.model.module.bias"}
    assert averaged(nn.Linear(2, 2)) == set()
    partly = nn.Linear(2, 2)
    partly._ddp_params_and_buffers_to_ignore = ["bias"]  # type: ignore[assignment]
    assert averaged(DistributedDataParallel(partly)) == {"Linear.weight"}
    for hook, averages in (
        (default_hooks.allreduce_hook, True),
        (default_hooks.fp16_compress_hook, True),
        (default_hooks.fp16_compress_wrapper(debugging_hooks.noop_hook), False),
        (debugging_hooks.noop_hook, False),
        (post_localSGD_hook.post_localSGD_hook, False),
        (lambda state, bucket: default_hooks.allreduce_hook(state, bucket), False),
    ):
        hooked = DistributedDataParallel(nn.Linear(2, 2))
        hooked._comm_hooks.append((hook, None))
        assert bool(averaged(hooked)) is averages, hook


class Wrapped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(2, 2) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def fully_sharded(model: nn.Module) -> nn.Module:
    for module in (*model.layers, model):  # type: ignore[misc,union-attr]
        fsdp.fully_shard(module, mesh=init_device_mesh("cpu", (1,)))
    return model


WRAPS = [DistributedDataParallel, *([fully_sharded] if hasattr(fsdp, "fully_shard") else [])]


@pytest.mark.parametrize("wrap", WRAPS)
@pytest.mark.usefixtures("process_group")
def test_a_wrapper_for_several_ranks_changes_no_name(wrap: Callable[[nn.Module], nn.Module]) -> None:
    def described(wrap: Callable[[nn.Module], nn.Module]) -> set[tuple[str, str, str]]:
        with observing(EVERYTHING) as seen:
            torch.manual_seed(0)
            model = wrap(Wrapped())
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for _ in range(2):
                optimizer.zero_grad()
                model(torch.ones(4, 2)).sum().backward()
                optimizer.step()
        assert seen.faults == []
        kinds = ("batch", "graph", "model", "module")
        readings = [reading for reading in seen.readings if reading.kind in kinds]
        return {(reading.variable, reading.attribute, str(reading.value)) for reading in readings}

    plain = described(lambda model: model)
    assert {variable for variable, _, _ in plain} == {
        "Wrapped", "Wrapped.layers", "Wrapped.layers.0", "Wrapped.layers.1", "program",
    }  # fmt: skip
    wrapped = described(wrap)
    if wrap is fully_sharded:  # updates of sharded parameters are not measured
        plain = {reading for reading in plain if "update" not in reading[2]}
    assert wrapped == plain


@pytest.mark.parametrize("wrap", WRAPS)
@pytest.mark.usefixtures("process_group")
def test_the_name_of_a_wrapped_model_does_not_come_back(wrap: Callable[[nn.Module], nn.Module]) -> None:
    catalog = VariableCatalog()

    def named(make: Callable[[nn.Module], nn.Module]) -> str:
        model = make(Wrapped())
        catalog.live_modules.add(model)
        catalog.refresh_modules()
        return catalog.model_name(model)

    names = []
    for make in (lambda model: model, wrap, lambda model: model, wrap):
        names.append(named(make))
        gc.collect()
    assert names == ["Wrapped", "Wrapped", "Wrapped#2", "Wrapped#2"]


@pytest.mark.usefixtures("process_group")
def test_two_models_in_wrappers_have_two_names() -> None:
    catalog = VariableCatalog()
    wrappers = [DistributedDataParallel(Wrapped()) for _ in range(2)]
    for wrapper in wrappers:
        catalog.live_modules.add(wrapper)
    catalog.refresh_modules()
    assert {catalog.module_name(wrapper) for wrapper in wrappers} == {
        "DistributedDataParallel",
        "DistributedDataParallel#2",
    }
    assert {catalog.model_name(wrapper) for wrapper in wrappers} == {"Wrapped", "Wrapped#2"}
    assert {variable.name.partition(".")[0] for variable, _ in catalog.living()} == {"Wrapped", "Wrapped#2"}
    assert all(variable.data_parallel for variable, _ in catalog.living())


def test_parts_that_were_called_before_they_had_a_model_have_names_of_their_own() -> None:
    """A program may call each part once, to learn how many features it returns."""

    def part() -> nn.Module:
        made = Sole()
        made(torch.ones(2, 3))
        return nn.Sequential(made, nn.ReLU())

    with observing() as seen:
        first, second = part(), part()
        optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=0.1)
        (first(torch.ones(2, 3)) + second(torch.ones(2, 3))).sum().backward()
        optimizer.step()
    assert len(recorded(seen.changes, "parameter.grad")) == 8


def test_new_layers_of_a_grown_model_have_names_of_their_own() -> None:
    with observing() as seen:
        model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        learn(model, optimizer)
        model = nn.Sequential(model[0], nn.Linear(3, 3), model[1])
        optimizer.add_param_group({"params": model[1].parameters()})
        seen.changes.clear()
        learn(model, optimizer)
    assert len(recorded(seen.changes, "parameter.grad")) == 6
