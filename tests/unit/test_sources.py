"""What each source records: calls with their facts, receivers and sites, and changes of state around them."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest
import torch
from observing import Seen, observing
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from traincheck.vocab.demand import NOTHING, Demand
from traincheck.vocab.events import NO_CALL, Change
from traincheck.vocab.facts import FACTS, value_of

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


def told(changes: list[Change], attribute: str) -> dict[str, tuple[str, str, bool]]:
    """Before, after and changed by variable."""
    return {change.variable: change[5:8] for change in changes if f"{change.kind}.{change.attribute}" == attribute}


def fact(change: Change, name: str) -> object:
    return value_of(change.context, name)


# -- optimizers ------------------------------------------------------------------------------------------------------


def test_an_optimizer_is_built_steps_and_clears() -> None:
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
        "lr": "positive",
    }
    names = {"Sole.body.weight", "Sole.body.bias", "Sole.head.weight", "Sole.head.bias"}
    assert told(seen.around(STEP), "parameter.data").keys() == names
    assert told(seen.around(STEP), "parameter.data")["Sole.head.bias"] == ("some", "some", True)
    entries = told(seen.around(STEP), "optimizer_state.data")
    assert entries["Sole.head.bias:exp_avg"] == ("none", "some", True)
    assert told(seen.around(ZERO_GRAD), "parameter.grad") == dict.fromkeys(names, ("some", "none", True))
    assert value_of(seen.named(ZERO_GRAD)[0].context, "set_to_none") is True


def test_zeroed_gradients_and_those_that_were_never_there() -> None:
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


def test_who_holds_and_who_owns_a_parameter() -> None:
    with observing() as seen:
        model = Sole()
        stray = nn.Parameter(torch.ones(3))
        first = torch.optim.SGD([model.body.weight, stray], lr=0.1)
        second = torch.optim.SGD([model.head.weight], lr=0.1)
        (model(torch.ones(2, 3)).sum() + stray.sum()).backward()
        first.step()
        second.step()
    one, other = seen.named(STEP)
    assert (one.receiver, other.receiver) == ("SGD", "SGD#2")
    of_first = {change.variable: change for change in seen.changes if change.call == one.seq}
    held = {name: (fact(change, "held"), fact(change, "owned"), change.owner) for name, change in of_first.items()}
    assert held["Sole.body.weight"] == ("this", True, "SGD")
    assert held["SGD.param_groups[0][1]"] == ("this", False, "SGD")
    assert held["Sole.head.bias"] == ("none", True, "")
    assert "Sole.head.weight" not in held  # the other optimizer's
    assert fact(of_first["Sole.head.bias"], "lr") == "none"
    backward = {change.variable: fact(change, "held") for change in seen.around(BACKWARD)}
    assert backward["Sole.head.weight"] == "this" and backward["Sole.head.bias"] == "none"


def test_frozen_parameters_learning_rates_and_closures() -> None:
    with observing() as seen:
        model = Sole()
        model.body.requires_grad_(False)
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


def test_what_no_optimizer_changes_is_told_as_unchanged() -> None:
    with observing() as seen:
        model = Sole()
        copies = [nn.Parameter(parameter.detach().clone()) for parameter in model.parameters()]
        optimizer = torch.optim.SGD(copies, lr=0.1)
        learn(model, optimizer)
    changed = {change.variable: change.changed for change in seen.around(STEP)}
    assert changed == dict.fromkeys((f"SGD.param_groups[0][{place}]" for place in range(4)), False) | dict.fromkeys(
        ("Sole.body.weight", "Sole.body.bias", "Sole.head.weight", "Sole.head.bias"), False
    )


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
        variable = seen.sources[0]._catalog.find(model.embed.weight)  # type: ignore[attr-defined]
    assert variable.aliases == ("Tied.embed.weight", "Tied.out.weight")
    assert [change.variable for change in seen.around(STEP)] == ["Tied.embed.weight"]
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
    assert told(seen.around("torch.nn.Module.zero_grad"), "parameter.grad").keys() == {
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


# -- modules ---------------------------------------------------------------------------------------------------------


def test_module_calls_have_mode_receiver_and_result() -> None:
    with observing() as seen:
        model = Sole()
        model(torch.ones(2, 3))
        model.eval()
        with torch.no_grad():
            model(torch.ones(2, 3))
    receivers = ["Sole", "Sole.body", "Sole.head"]
    calls = seen.named(FORWARD)
    assert [call.receiver for call in calls] == receivers * 2
    assert calls[1].levels == ("torch.nn.Linear.forward", FORWARD)
    assert [call.parent for call in calls[:3]] == [calls[0].parent, calls[0].seq, calls[0].seq]
    assert [value_of(call.context, "outermost") for call in calls[:3]] == [True, False, False]
    assert [call.args for call in calls] == [(("training", True),)] * 3 + [(("training", False),)] * 3
    assert [value_of(call.context, "grad_mode") for call in calls] == ["on"] * 3 + ["off"] * 3
    assert dict(calls[0].result) == {"dtype": "float32", "requires_grad": True}
    (switch,) = seen.named("torch.nn.Module.eval")
    assert switch.receiver == "Sole" and not seen.named("torch.nn.Module.train")


def test_batch_norm_changes_its_buffers_in_training_only() -> None:
    with observing() as seen:
        model = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 1))
        model(torch.randn(4, 3))
        model.eval()
        model(torch.randn(4, 3))
    around = [change for change in seen.around("torch.nn.BatchNorm1d.forward") if change.kind == "buffer"]
    assert [(change.variable.split(".", 1)[1], change.changed) for change in around] == [
        (name, changed)
        for changed in (True, False)
        for name in ("0.running_mean", "0.running_var", "0.num_batches_tracked")
    ]


def test_a_model_built_before_observation_is_known() -> None:
    model = Sole()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    learn(model, optimizer)
    with observing(freeze=False) as seen:
        learn(model, optimizer)
    assert {change.variable.rsplit(".", 2)[-2] for change in seen.around(STEP)} == {"body", "head"}
    assert {fact(change, "owned") for change in seen.around(STEP)} == {True}


# -- the rest of the life cycle --------------------------------------------------------------------------------------


def test_schedulers_step_but_not_while_they_are_built() -> None:
    with observing() as seen:
        model = Sole()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        schedulers = [
            torch.optim.lr_scheduler.StepLR(optimizer, 1),
            torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0),
            torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 4),
        ]
        learn(model, optimizer)
        for scheduler in schedulers:
            scheduler.step()
        torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer).step(1.0)
    assert [call.receiver for call in seen.named(SCHEDULE)] == [
        "StepLR",
        "LambdaLR",
        "CosineAnnealingLR",
        "ReduceLROnPlateau",
    ]
    assert {call.levels[-1] for call in seen.named(SCHEDULE)} == {SCHEDULE}


def test_batches_and_the_end_of_an_epoch() -> None:
    with observing() as seen:
        train, test = (DataLoader(TensorDataset(torch.ones(4, 3)), batch_size=2) for _ in range(2))
        for loader in (train, test, train):
            assert len(list(loader)) == 2
    assert [value_of(call.result, "last_batch") for call in seen.named(NEXT)] == [False, False, True] * 3
    receivers = [call.receiver for call in seen.named("torch.utils.data.DataLoader.__iter__")]
    assert receivers == ["DataLoader#1", "DataLoader#2", "DataLoader#1"]
    assert [call.receiver for call in seen.named(NEXT)][::3] == receivers


def test_regions_and_the_circumstances_inside() -> None:
    with observing() as seen:
        a = torch.ones(3, 3)
        with torch.autocast("cpu", torch.bfloat16):
            a @ a
        with torch.no_grad(), torch.inference_mode():
            a @ a

        @torch.no_grad()
        def decorated() -> torch.Tensor:
            return a @ a

        decorated()
        a @ a
    products = [call for call in seen.calls if call.name.endswith("matmul")]
    assert [value_of(call.context, "autocast") for call in products] == ["bfloat16", "off", "off", "off"]
    assert [value_of(call.context, "grad_mode") for call in products] == ["on", "inference", "off", "on"]
    assert [value_of(call.result, "dtype") for call in products] == ["bfloat16", "float32", "float32", "float32"]
    by_seq = {call.seq: call for call in seen.calls}
    around = [by_seq[call.parent].name if call.parent in by_seq else "" for call in products]
    assert around == ["torch.autocast", "torch.inference_mode", "torch.no_grad", ""]
    assert {call.kind for call in seen.named("torch.no_grad")} == {"region"}


def test_a_region_left_by_an_exception_ends() -> None:
    with observing() as seen:
        for _ in range(2):
            with pytest.raises(ZeroDivisionError), torch.no_grad():
                raise ZeroDivisionError
        torch.ones(3).sum()
    assert [call.end > call.seq for call in seen.named("torch.no_grad")] == [True, True]
    assert {call.parent for call in seen.calls if call.kind == "function"} == {NO_CALL}


def test_functions_and_methods_of_torch() -> None:
    with observing() as seen:
        x = torch.ones(3, requires_grad=True)
        torch.nn.functional.dropout(x.mul(2), 0.5, training=False).add_(1)
        with pytest.raises(RuntimeError):
            torch.cat([torch.ones(2), torch.ones(2, 2)])
    names = [call.name for call in seen.calls if call.kind == "function"]
    assert names[:1] == ["torch.ones"] and names[-1] == "torch.cat"
    assert {"torch.Tensor.mul", "torch.nn.functional.dropout", "torch.Tensor.add_"} <= set(names)
    (dropout,) = seen.named("torch.nn.functional.dropout")
    assert dropout.args == (("inplace", False), ("training", False))
    assert dict(dropout.result) == {"dtype": "float32", "requires_grad": True}
    assert seen.named("torch.cat")[0].end == NO_CALL


def project_function(x: torch.Tensor) -> torch.Tensor:
    return x + 1


def failing_function() -> None:
    raise KeyError


def test_functions_of_the_project() -> None:
    with observing() as seen:
        project_function(torch.ones(3))
        with pytest.raises(KeyError):
            failing_function()
        project_function(torch.ones(3))
    calls = [call for call in seen.calls if call.kind == "project"]
    assert [call.name for call in calls] == [
        "test_sources.project_function",
        "test_sources.failing_function",
        "test_sources.project_function",
    ]
    inner = [call for call in seen.calls if call.name == "torch.Tensor.add"]
    assert [call.parent for call in inner] == [calls[0].seq, calls[2].seq]


def test_sites_are_file_and_line_of_the_users_code() -> None:
    with observing() as seen:
        model = Sole()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(torch.ones(2, 3)).sum().backward()
        here = inspect.currentframe().f_lineno - 1  # type: ignore[union-attr]
        optimizer.step()
    sites = {name: seen.named(name)[0].site for name in (FORWARD, BACKWARD, STEP)}
    file = Path(__file__)
    for name, line in ((FORWARD, here), (BACKWARD, here), (STEP, here + 2)):
        told_file, told_line, function = sites[name].rsplit(":", 2)
        assert (Path(told_file).resolve(), int(told_line)) == (file, line)
        assert function.endswith("test_sites_are_file_and_line_of_the_users_code")


def test_code_outside_the_project_has_no_site(tmp_path: Path) -> None:
    with observing(project=str(tmp_path)) as seen:
        project_function(torch.ones(3))
    assert {call.site for call in seen.calls} == {""}
    assert not [call for call in seen.calls if call.kind == "project"]


# -- demand ----------------------------------------------------------------------------------------------------------


def everything_happens() -> None:
    model = Sole()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for (x,) in DataLoader(TensorDataset(torch.ones(4, 3)), batch_size=2):
        optimizer.zero_grad()
        project_function(model(x)).sum().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


DEMANDS = {
    "nothing": NOTHING,
    "a function": Demand(frozenset(("torch.Tensor.add",))),
    "a level": Demand(frozenset((FORWARD,))),
    "a class": Demand(frozenset(("torch.nn.Linear.forward",))),
    "clearing": Demand(frozenset((ZERO_GRAD,))),
    "project": Demand(frozenset(("test_sources.project_function",))),
    "update": Demand(frozenset((STEP,)), frozenset(((STEP, "parameter.data"),))),
    "batches": Demand(frozenset((NEXT, CLIP))),
}


@pytest.mark.parametrize("name", DEMANDS)
def test_only_what_is_demanded_is_recorded(name: str) -> None:
    demand = DEMANDS[name]
    with observing(demand) as seen:
        everything_happens()
    assert seen.faults == []
    found = {level for call in seen.calls for level in call.levels}
    assert demand.apis <= found
    always = {STEP, BACKWARD}  # steps are counted by them
    for call in seen.calls:
        assert demand.wants_call(call.levels) or always & set(call.levels)
    attributes = {f"{change.kind}.{change.attribute}" for change in seen.around(STEP)}
    assert attributes == {attribute for api, attribute in demand.states if api == STEP}
    assert [window.stage for window in seen.windows] == ["setup", "train", "train", "end"]


def test_every_fact_is_of_the_vocabulary() -> None:
    with observing() as seen:
        everything_happens()
    told_facts = {name for event in (*seen.calls, *seen.changes) for name, _ in event.context}
    assert told_facts <= FACTS.keys()


def test_nothing_is_recorded_after_the_end() -> None:
    with observing() as seen:
        pass
    before = len(seen.windows)
    everything_happens()
    assert len(seen.windows) == before
    assert isinstance(seen, Seen) and seen.calls == []
