"""What sources record of calls: facts, receivers, sites, regions; and only what is demanded."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from observed_process import Seen, observing
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


def transitions(changes: list[Change], attribute: str) -> dict[str, tuple[str, str, bool]]:
    """Before, after and changed by variable."""
    return {change.variable: change[5:8] for change in changes if f"{change.kind}.{change.attribute}" == attribute}


def fact(change: Change, name: str) -> object:
    return value_of(change.context, name)


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


def test_the_first_batch_of_each_pass_is_marked() -> None:
    with observing() as seen:
        loader = DataLoader(TensorDataset(torch.ones(4, 3)), batch_size=2)
        next(iter(loader))
        list(loader)
    assert [value_of(call.result, "first_batch") for call in seen.named(NEXT)] == [True, True, False, None]


@pytest.mark.parametrize("enabled", [True, False])
def test_only_an_enabled_scaler_scales(enabled: bool) -> None:
    with observing() as seen:
        model = Sole()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", enabled=enabled)
        scaler.scale(model(torch.ones(2, 3)).sum()).backward()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
    called = [call.name.rpartition(".")[2] for call in seen.calls if call.name.startswith("torch.amp.GradScaler")]
    assert called == (["scale", "unscale_", "step", "update"] if enabled else [])
    assert len([call for call in seen.calls if call.levels[-1] == STEP]) == 1


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
    assert dropout.args == (("inplace", False), ("p", 0.5), ("training", False))
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
        digest_file, told_line, function = sites[name].rsplit(":", 2)
        assert (Path(digest_file).resolve(), int(told_line)) == (file, line)
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
        torch.amp.GradScaler("cpu", enabled=False).step(optimizer)


DEMANDS = {
    "nothing": NOTHING,
    "a function": Demand.of_calls("torch.Tensor.add"),
    "a level": Demand.of_calls(FORWARD),
    "a class": Demand.of_calls("torch.nn.Linear.forward"),
    "clearing": Demand.of_calls(ZERO_GRAD),
    "project": Demand.of_calls("test_sources.project_function"),
    "update": Demand.of_calls(STEP, changes=("parameter.data",)),
    "batches": Demand.of_calls(NEXT, CLIP),
}


@pytest.mark.parametrize("name", DEMANDS)
def test_only_demanded_events_are_recorded(name: str) -> None:
    demand = DEMANDS[name]
    with observing(demand) as seen:
        everything_happens()
    assert seen.faults == []
    levels = {level for call in seen.calls for level in call.levels}
    assert demand.calls <= levels
    always = {STEP, BACKWARD}  # steps are counted by them
    for call in seen.calls:
        assert demand.records_call(call.levels) or always & set(call.levels)
    attributes = {f"{change.kind}.{change.attribute}" for change in seen.around(STEP)}
    assert attributes == {attribute for api, attribute in demand.state_changes if api == STEP}
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
