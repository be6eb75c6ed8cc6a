"""Preparation of a model, state after a restart, and schedule lengths, observed in real loops."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from observed_process import Seen, observing
from sample_windows import Script, occasions, verdicts
from traincheck.relations.consistent.readiness import (
    ATTRIBUTES,
    BUFFER_DATA,
    FIRST_UPDATED,
    IN_FORCE,
    KEPT,
    MADE,
    OWN_TRAIN,
)
from traincheck.relations.consistent.relation import Consistent
from traincheck.relations.periodic.relation import Periodic
from traincheck.relations.periodic.schedule_length import COVERS
from traincheck.relations.periodic.schedule_length import SUBJECT as SPAN
from traincheck.vocab.occasion import Occasion, Property, Subject


def of(seen: Seen, quantity: str, grain: str = "readiness") -> list[Occasion]:
    assert seen.faults == []
    return occasions(Consistent, seen.windows, Subject(quantity, grain))


def learn(model: nn.Module, optimizer: torch.optim.Optimizer | None = None, width: int = 3) -> None:
    optimizer = optimizer or torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    optimizer.zero_grad()
    model(torch.randn(4, width)).square().sum().backward()
    optimizer.step()


# -- a train of one's own ----------------------------------------------------------------------------------------------


class Staged(nn.Module):
    """Freezes its first layer when it is put into training mode."""

    def __init__(self, stages: int = 1) -> None:
        super().__init__()
        self.stages = stages
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x))

    def freeze(self) -> None:
        if self.stages < 1:
            return
        self.first.eval()
        self.first.requires_grad_(False)

    def train(self, mode: bool = True) -> Staged:
        super().train(mode)
        self.freeze()
        return self


def called(model: nn.Sequential) -> None:
    model.train()


def frozen_by_hand(model: nn.Sequential) -> None:
    model[0].freeze()  # type: ignore[operator, union-attr]


def forgotten(model: nn.Sequential) -> None:
    pass


@pytest.mark.parametrize(("prepare", "effective"), [(called, True), (frozen_by_hand, True), (forgotten, False)])
def test_a_custom_train_method_is_called_before_training(
    prepare: Callable[[nn.Sequential], None], effective: bool
) -> None:
    with observing() as seen:
        model = nn.Sequential(Staged())
        prepare(model)
        for _ in range(2):
            learn(model)
    occasions = of(seen, OWN_TRAIN)
    assert verdicts(occasions, IN_FORCE) == [effective, effective]
    assert {name for occasion in occasions for name in occasion.variables} == {"Sequential.0"}
    assert ("Sequential.0 was never called" in occasions[0].note) is not effective


def test_modules_without_one_or_with_one_that_is_switched_off_are_not_judged() -> None:
    with observing() as seen:
        learn(nn.Sequential(nn.Linear(3, 1)))
        learn(nn.Sequential(Staged(stages=0)))  # there is nothing to freeze
    assert of(seen, OWN_TRAIN) == []


# -- attributes --------------------------------------------------------------------------------------------------------


class Expert(nn.Linear):
    def __init__(self, number: int) -> None:
        super().__init__(3, 3)
        self.id = number


@pytest.mark.parametrize("attribute", ["id", "number"])
def test_attributes_are_as_built_when_a_model_is_first_called(attribute: str) -> None:
    with observing() as seen:
        model = nn.Sequential(Expert(0), Expert(1))
        for count, module in enumerate(model.modules(), 10):
            setattr(module, attribute, count)  # an engine numbers all modules for its own use
        learn(model)
        model[0].id = 7  # type: ignore[assignment]  # later it may change as it likes
        learn(model)
    (occasion,) = of(seen, ATTRIBUTES)
    kept = attribute == "number"
    assert verdicts([occasion], KEPT) == [kept]
    if not kept:
        assert occasion.variables == ("Sequential.0.id", "Sequential.1.id")
        assert occasion.note.startswith("attribute id of Sequential.0 was changed") and "was 0, is 11" in occasion.note


class LateNorm(nn.Module):
    """Layers that are built with their input note the axes of it, as Keras does."""

    def __init__(self) -> None:
        super().__init__()
        self.axis: int | list[int] = -1

    def build(self) -> None:
        self.axis = [1]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x / x.std(self.axis, keepdim=True)


def test_a_module_may_set_its_own_attributes() -> None:
    with observing() as seen:
        model = nn.Sequential(nn.Linear(3, 3), LateNorm())
        model[1].build()
        learn(model)
    assert verdicts(of(seen, ATTRIBUTES), KEPT) == [True]


# -- buffers of random numbers -----------------------------------------------------------------------------------------


class Estimated(nn.Module):
    """Divides by an estimate that is updated in training only, as the power iteration of spectral norms is."""

    def __init__(self, start: torch.Tensor) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.register_buffer("estimate", start)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.estimate.copy_(self.linear.weight.detach().sum(1))
        return self.linear(x) / self.estimate


def evaluate(model: nn.Module) -> None:
    model.eval()
    with torch.no_grad():
        model(torch.randn(2, 3))
    model.train()


def test_random_buffers_are_updated_before_they_are_used() -> None:
    for before, start, expected in (
        (True, torch.randn(3), [False, False]),
        (False, torch.randn(3), [True, True]),
        (True, torch.ones(3), []),  # neutral, as the statistics of batch norms are
    ):
        with observing() as seen:
            model = nn.Sequential(Estimated(start))
            if before:
                evaluate(model)
            learn(model)
            evaluate(model)
            learn(model)
        occasions = of(seen, BUFFER_DATA)
        assert verdicts(occasions, FIRST_UPDATED) == expected
        if expected == [False, False]:
            assert occasions[0].variables == ("Sequential.0.estimate",) and "evaluate" in occasions[0].site


class Assigned(Estimated):
    """Is updated by assignment, for the first time when it is built."""

    def __init__(self, start: torch.Tensor) -> None:
        super().__init__(start)
        self.estimate = self.linear.weight.detach().sum(1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.estimate = self.linear.weight.detach().sum(1)
        return self.linear(x) / self.estimate


def test_an_update_while_the_model_is_built_counts() -> None:
    with observing() as seen:
        model = nn.Sequential(Assigned(torch.randn(3)))
        learn(model)  # from here on the estimate is behind the weights
        evaluate(model)
        learn(model)
    assert verdicts(of(seen, BUFFER_DATA), FIRST_UPDATED) == [True]


def test_a_set_or_loaded_buffer_loses_its_start_value() -> None:
    with observing() as seen:
        model = nn.Sequential(Estimated(torch.randn(3)))
        model.load_state_dict(nn.Sequential(Estimated(torch.randn(3))).state_dict())
        evaluate(model)
        learn(model)
    assert verdicts(of(seen, BUFFER_DATA), FIRST_UPDATED) == [True]
    assert [r.value for r in seen.readings if f"{r.kind}.{r.attribute}" == MADE] == [None]


# -- restarts ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("initial", "goes_on"), [(0.4, True), (0.1, True), (0.1, False)])
def test_a_resumed_optimizer_has_the_earlier_settings(initial: float, goes_on: bool) -> None:
    with observing() as seen:
        model = nn.Linear(3, 1)
        optimizer = torch.optim.Adam([{"params": model.parameters(), "initial_lr": 0.4}], lr=0.1)
        for _ in range(3):
            learn(model, optimizer)
        weights, state = model.state_dict(), {n: optimizer.state[p] for n, p in model.named_parameters()}
        del optimizer, model
        model = nn.Linear(3, 1)
        model.load_state_dict(weights)
        optimizer = torch.optim.Adam([{"params": model.parameters(), "initial_lr": initial}], lr=0.1)
        for name, parameter in model.named_parameters():
            if goes_on:
                optimizer.state[parameter] = state[name]
        for _ in range(2):
            learn(model, optimizer)
    occasions = of(seen, "hyperparameter.initial_lr", "restart")
    assert verdicts(occasions, Property("takes over", "hyperparameter.initial_lr")) == [initial == 0.4] * 2 * goes_on
    if occasions and initial != 0.4:
        assert "initial_lr of Adam#2.param_groups[0] is 0.1 after the restart, and was 0.4 in Adam" in occasions[0].note


# -- spans -------------------------------------------------------------------------------------------------------------


def scheduled(total: int, *, steps_between: int, batches: int = 6, rises: bool = False) -> list[Occasion]:
    """Two passes; a scheduler made for `total` steps is stepped after `steps_between` batches."""
    script = Script().window("setup")
    steps = 0
    for _ in range(2):
        script.iterate("DataLoader#1", batches)
        for batch in range(1, batches + 1):
            script.call("torch.utils.data.DataLoader.__next__", receiver="DataLoader#1")
            script.window().step()
            if batch % steps_between == 0:
                steps += 1
                script.schedule(
                    ("scheduler.lr", "StepLR", 1 + (steps if rises else -steps) * 0.01),
                    *([("scheduler.span", "StepLR", total, "announced")] if steps == 1 else []),
                )
        script.exhaust(batches)
    return occasions(Periodic, script.windows, SPAN)


def test_a_scheduler_that_is_stepped_per_batch_is_made_for_a_pass() -> None:
    assert verdicts(scheduled(5, steps_between=1), COVERS) == [True] * 10
    bad = scheduled(2, steps_between=1)
    assert verdicts(bad, COVERS) == [False] * 10
    assert "made for 2 steps but is stepped after each batch, and a pass over DataLoader#1 has 6" in bad[0].note


def test_one_that_is_stepped_per_pass_or_group_of_batches_or_warms_up_is_no_exception() -> None:
    assert scheduled(2, steps_between=6) == []
    assert verdicts(scheduled(6, steps_between=2), COVERS) == [True] * 4
    assert verdicts(scheduled(2, steps_between=2), COVERS) == [False] * 4
    assert scheduled(2, steps_between=1, rises=True) == []
