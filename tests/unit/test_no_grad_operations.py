"""The description of what functions of the project compute without gradients: what a line shows."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel

from observed_process import observing
from traincheck.relations.consistent.relation import Consistent
from traincheck.sources.functions import described_windows
from traincheck.sources.functions.described_windows import MAX_CALLS, SCHEDULE
from traincheck.vocab.demand import Demand
from traincheck.vocab.events import LIVE, PARTIAL, Reading, Window
from traincheck.vocab.occasion import Occasion

NO_GRAD = Demand.of_calls("torch.autograd.backward", "torch.optim.Optimizer.step") | Demand.of_readings(
    "no_grad.operations", "no_grad.numbers"
)
Lines = dict[tuple[str, str, str], list[str]]


def nothing(net: nn.Module, x: torch.Tensor) -> None:
    """Do nothing before a step."""


def train(
    before_step: Callable[[nn.Module, torch.Tensor], object] = nothing,
    steps: int = 3,
    batch: int = 4,
    evaluate: Callable[[nn.Module], object] | None = None,
    demand: Demand = NO_GRAD,
) -> list[Window]:
    """Train a linear model, and return the windows."""
    with observing(demand) as seen:
        torch.manual_seed(0)
        net = nn.Linear(3, 2)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(steps):
            x = torch.randn(batch, 3)
            optimizer.zero_grad()
            loss = F.mse_loss(net(x), torch.zeros(batch, 2))
            before_step(net, x)
            loss.backward()
            optimizer.step()
            if evaluate is not None:
                evaluate(net)
    assert seen.faults == []
    return seen.windows


def readings(windows: list[Window], name: str) -> list[tuple[Window, Reading]]:
    return [
        (window, reading)
        for window in windows
        for reading in window.readings
        if reading.kind == "no_grad" and reading.variable.endswith(f".{name}")
    ]


def lines_of(windows: list[Window], name: str, attribute: str = "operations", stage: str = "train") -> set[str]:
    """The lines of a function, without the one about torch."""
    return {
        line
        for window, reading in readings(windows, name)
        if reading.attribute == attribute and window.stage == stage
        for line in str(reading.value).split("\n")[1:]
    }


def returns(net: nn.Module, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        rewards = x[:, -1:] * 0.9 + net(x).max(1).values
        rewards[:, 0] = 0
        return rewards.clone().argmax(dim=1)


def test_each_function_is_a_line_with_what_it_takes() -> None:
    windows = train(returns)
    assert lines_of(windows, "returns") == {
        "__getitem__([: -1:]) <- randn",
        "mul(~) <- __getitem__",
        "max(1) <- result of trained Linear",
        "add <- mul, max",
        "__setitem__([: 0], 0) <- add",
        "clone <- add",
        "argmax(dim=1) int64 <- clone",
    }
    assert lines_of(windows, "returns", "numbers") == {"mul.1=0.9"}


def test_what_has_a_gradient_is_in_the_graph_and_not_here() -> None:
    def with_graph(net: nn.Module, x: torch.Tensor) -> None:
        norm = (net(x) ** 2).mean()
        norm.detach()

    assert lines_of(train(with_graph), "with_graph") == {"detach <- graph"}


def test_updates_by_hand_name_the_models() -> None:
    target = nn.Linear(3, 2)

    def follow(net: nn.Module, x: torch.Tensor) -> None:
        with torch.no_grad():
            for old, new in zip(target.parameters(), net.parameters(), strict=True):
                old.lerp_(new, 0.25)

    lines = lines_of(train(follow), "follow")
    assert "lerp_(~) <- parameter, state of Linear" in lines  # no module of TrainCheck's knowledge holds the other
    assert lines_of(train(follow), "follow", "numbers") == {"lerp_.2=0.25"}


def test_a_library_is_one_line_and_modules_and_optimizers_are_none() -> None:
    averages: list[AveragedModel] = []

    def average(net: nn.Module, x: torch.Tensor) -> None:
        if not averages:
            averages.append(AveragedModel(net))
        averages[0].update_parameters(net)
        copy.deepcopy(net.state_dict())
        with torch.no_grad():
            net(x)

    lines = lines_of(train(average), "average")
    assert lines >= {
        "calls AveragedModel.update_parameters <- AveragedModel, Linear",
        "calls Module.state_dict <- Linear",
        "calls deepcopy",
    }
    assert not any("wrapped_call" in line or "Linear.forward" in line for line in lines)
    assert lines_of(train(average), "train") == {"randn", "zeros"}


def test_a_child_of_another_argument_is_named_by_it() -> None:
    averages: list[AveragedModel] = []

    def average(net: nn.Module, x: torch.Tensor) -> None:
        if not averages:
            averages.append(AveragedModel(net))
        averages[0].update_parameters(averages[0].module)

    assert "calls AveragedModel.update_parameters <- AveragedModel, AveragedModel.module" in lines_of(
        train(average), "average"
    )


def clip_parameters(net: nn.Module, x: torch.Tensor) -> None:
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)


def clip_nothing(net: nn.Module, x: torch.Tensor) -> None:
    used_up = net.parameters()
    list(used_up)
    nn.utils.clip_grad_norm_(used_up, 1.0)


@pytest.mark.filterwarnings("ignore:`parameters` is an empty generator")
def test_a_library_shows_whose_parameters_it_got() -> None:
    assert lines_of(train(clip_parameters), "clip_parameters") == {"calls clip_grad_norm_ <- parameters of Linear"}
    assert lines_of(train(clip_nothing), "clip_nothing") == {"calls clip_grad_norm_"}


def test_the_order_of_samples_in_a_list_is_chance() -> None:
    def stack(net: nn.Module, x: torch.Tensor) -> None:
        rows = [row.abs() if row[0] > 0 else row.neg() for row in x]
        torch.stack(rows)
        torch.cat([x.neg(), x.abs()])  # two different things: their order counts

    lines = lines_of(train(stack, steps=4, batch=9), "stack")
    assert {line for line in lines if line.startswith("stack")} == {"stack <- abs, neg"}
    assert "cat <- neg, abs" in lines


def test_what_a_model_returns_says_whether_it_is_trained() -> None:
    targets: list[nn.Module] = []

    def target(net: nn.Module, x: torch.Tensor) -> None:
        if not targets:
            targets.append(copy.deepcopy(net))
        with torch.no_grad():
            torch.maximum(net(x), targets[0](x))

    assert "maximum <- result of trained Linear, result of Linear" in lines_of(train(target), "target")


def test_a_branch_that_is_taken_at_random_is_marked_and_never_required() -> None:
    generator = torch.Generator().manual_seed(3)

    def erase(net: nn.Module, x: torch.Tensor) -> None:
        x = x.clone()
        for row in x.unbind():
            if torch.rand(1, generator=generator).item() < 0.5:
                row[0] = 0.5
            row.abs_()

    found = occasions(train(erase, steps=8, batch=8), "erase")
    closed = [occasion for occasion in found if occasion.failed is None]
    assert {prop.detail for occasion in found for prop in occasion.held} == {
        "clone <- randn",
        "unbind <- clone",
        "rand",
        "__setitem__(0, ~) <- unbind",
        "abs_ <- unbind",
    }
    assert {prop.detail for occasion in closed for prop in occasion.sometimes} == {"__setitem__(0, ~) <- unbind"}


@pytest.mark.parametrize(
    ("step", "length", "words"),
    [(4, 4, {"the next rows"}), (4, 3, {"rows after a gap"}), (3, 4, {"rows from before"}), (40, 4, set())],
)
def test_slices_say_how_they_lie_to_the_last_one(step: int, length: int, words: set[str]) -> None:
    rows = torch.randn(20, 3)
    starts = itertools.cycle(range(0, 20, step))

    def take(net: nn.Module, x: torch.Tensor) -> None:
        start = next(starts)
        rows[start : start + length].sum()

    lines = {line for line in lines_of(train(take, steps=12), "take") if line.startswith("__getitem__")}
    first = {line for line in lines if "rows" not in line}
    assert len(first) == 1
    assert {
        word for word in ("the next rows", "rows after a gap", "rows from before") for li in lines if word in li
    } == words


def test_the_constants_of_an_initialization_are_numbers() -> None:
    def initialize(net: nn.Module, x: torch.Tensor) -> None:
        nn.init.normal_(net.bias, std=0.25)

    assert lines_of(train(initialize), "initialize", "numbers") >= {"nn.init.normal_.std=0.25"}


def test_the_end_says_whether_all_windows_were_described(monkeypatch: pytest.MonkeyPatch) -> None:
    def complete(windows: list[Window]) -> list[object]:
        return [r.value for window in windows for r in window.readings if r.attribute == "described_all"]

    demand = NO_GRAD | Demand.of_readings("no_grad.described_all")
    assert complete(train(returns, demand=demand)) == [True]
    monkeypatch.setattr(described_windows, "FULL_CALLS", 10)
    assert complete(train(returns, steps=3 * SCHEDULE.seldom, demand=demand)) == [False]


def test_another_batch_size_changes_no_line() -> None:
    def shuffled(net: nn.Module, x: torch.Tensor) -> torch.Tensor:
        order = torch.randperm(len(x))
        weights = torch.full((len(x),), 1 / len(x))
        return x[order].reshape(len(x), -1)[: len(x) - 1] * weights[:-1, None] / len(x)

    few, many = (train(shuffled, batch=batch) for batch in (4, 64))
    assert lines_of(few, "shuffled") == lines_of(many, "shuffled") != set()
    assert lines_of(few, "shuffled", "numbers") == lines_of(many, "shuffled", "numbers") == set()


def test_an_evaluation_has_lines_of_its_own() -> None:
    def evaluate(net: nn.Module) -> None:
        net.eval()
        with torch.no_grad():
            net(torch.ones(2, 3)).argmax(1)
        net.train()

    windows = train(evaluate=evaluate)
    assert lines_of(windows, "evaluate", stage="eval") == {"ones", "argmax(1) int64 <- result of trained Linear"}
    assert LIVE in {reading.role for window, reading in readings(windows, "evaluate") if window.stage == "eval"}


def test_the_first_calls_are_described_and_then_one_window_of_many(monkeypatch: pytest.MonkeyPatch) -> None:
    changing = iter(range(1_000))

    def changes(net: nn.Module, x: torch.Tensor) -> None:
        x * (0.123 + 0.01 * next(changing))  # no two windows are equal

    def described() -> set[int]:
        windows = train(changes, steps=2 * SCHEDULE.seldom + 3)
        return {window.step for window, reading in readings(windows, "changes") if reading.role != PARTIAL}

    assert described() == set(range(2, 2 * SCHEDULE.seldom + 3))
    monkeypatch.setattr(described_windows, "FULL_CALLS", 0)
    assert described() == {*range(2, SCHEDULE.often + 1), SCHEDULE.seldom, 2 * SCHEDULE.seldom}


def test_a_window_of_many_calls_is_not_described_and_costs_little() -> None:
    def many(net: nn.Module, x: torch.Tensor) -> None:
        for _ in range(MAX_CALLS + 1):
            x.abs()

    assert readings(train(many, steps=1), "many") == []
    assert readings(train(returns, steps=1), "returns") != []


def occasions(windows: list[Window], name: str = "returns") -> list[Occasion]:
    relation = Consistent()
    return [
        occasion
        for window in windows
        for occasion in relation.occasions(window)
        if occasion.subject.api == "no_grad.operations" and f".{name} (train) under " in occasion.subject.grain
    ]


def test_lines_are_elements_of_a_set_for_each_function_and_stage() -> None:
    found = occasions(train(returns))
    assert {len(occasion.held) for occasion in found} == {7}
    assert [occasion.failed for occasion in found] == [frozenset(), frozenset(), None, frozenset(), None][: len(found)]
    # Nothing can be missing in the first step, which follows the set-up.
