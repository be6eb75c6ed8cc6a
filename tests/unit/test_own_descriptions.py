"""What a program trains with, as lines: the parameters and buffers of models, their inputs, checkpoints, whole runs."""

from __future__ import annotations

import gc
import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from observed_process import observing
from traincheck.inference.candidate_selection import select_rules
from traincheck.inference.tally import Tally
from traincheck.relations.consistent.descriptions import DESCRIBED
from traincheck.relations.consistent.pass_ends import AT_END, BEFORE_END, PASSES, PassEnds
from traincheck.relations.consistent.ranks.seeds import OWN, SAME, SHARED, Seeds
from traincheck.relations.consistent.relation import Consistent
from traincheck.relations.consistent.whole_runs import RUNS
from traincheck.testing.readable_traces import from_text
from traincheck.vocab.builtin_rules import NEVER_STEPPED
from traincheck.vocab.demand import Demand
from traincheck.vocab.events import NO_CALL, Reading, Window
from traincheck.vocab.invariant import ERROR, Invariant
from traincheck.vocab.properties import elements_of


def described(body: Callable[[], object], quantity: str, demand: Demand = DESCRIBED) -> list[tuple[str, set[str]]]:
    """What the body trains with: each description of this quantity, with its variable."""
    kind, _, attribute = quantity.partition(".")
    with observing(demand) as seen:
        torch.manual_seed(0)
        body()
    assert seen.faults == []
    readings = [r for window in seen.windows for r in window.readings if (r.kind, r.attribute) == (kind, attribute)]
    return [(reading.variable, set(str(reading.value).split("\n"))) for reading in readings]


class Net(nn.Module):
    def __init__(self, layers: int = 2) -> None:
        super().__init__()
        self.register_buffer("scale", torch.ones(3))
        self.register_buffer("mask", torch.ones(3, dtype=torch.bool), persistent=False)
        self.layers = nn.ModuleList(nn.Linear(3, 3) for _ in range(layers))

    def forward(self, x: Any) -> torch.Tensor:
        if isinstance(x, dict):
            x = x["rows"]
        x = x * self.scale
        for layer in self.layers:
            x = layer(x)
        return x


def update(net: nn.Module, x: Any) -> torch.optim.Optimizer:
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    net(x).sum().backward()
    optimizer.step()
    return optimizer


# -- models ----------------------------------------------------------------------------------------------------------


class Wrapper(torch.optim.Optimizer):
    """Hands all calls to another optimizer, as that of Accelerate does."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        return self.optimizer.param_groups

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.optimizer.step(closure)


def test_a_wrapper_of_an_optimizer_is_no_second_one() -> None:
    def body() -> None:
        net = Net()
        wrapper = Wrapper(torch.optim.SGD(net.parameters(), lr=0.1))
        scheduler = torch.optim.lr_scheduler.StepLR(wrapper, 3)
        for _ in range(3):
            net(torch.randn(4, 3)).sum().backward()
            wrapper.step()
            scheduler.step()

    parameters = Demand.of_readings("model.parameters", f"scheduler.{NEVER_STEPPED}")
    descriptions = described(body, "model.parameters", DESCRIBED | parameters)
    assert descriptions and all(" in an optimizer" in line for _, lines in descriptions for line in lines)


def test_buffers_are_part_of_a_module() -> None:
    ((model, lines),) = described(lambda: update(Net(), torch.randn(4, 3)), "model.modules")
    assert model == "Net"
    assert lines >= {
        "the model has the buffer scale of float32",
        "the model has the buffer mask of bool, which checkpoints leave out",
    }


def test_parameters_that_begin_with_the_same_random_values() -> None:
    def same_seed() -> None:
        net = Net(layers=0)
        for _ in range(2):
            torch.manual_seed(1)
            net.layers.append(nn.Linear(3, 3))
        update(net, torch.randn(4, 3))

    line = "layers.*.weight is trainable, in an optimizer (not decayed)"
    ((_, same),) = described(same_seed, "model.parameters")
    ((_, other),) = described(lambda: update(Net(), torch.randn(4, 3)), "model.parameters")
    assert f"{line}, begins with the values of another one" in same
    assert other >= {line}
    assert not any("begins" in text for text in other)


class LowPrecisionMomentum(torch.optim.Optimizer):
    """Momentum in bfloat16 for matrices, with a scale for each tensor."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 0.1})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for param in (param for group in self.param_groups for param in group["params"]):
            dtype = torch.bfloat16 if param.dim() > 1 else param.dtype
            state = self.state[param]
            state["momentum"] = (0.9 * state["momentum"] if state else 0) + param.grad.to(dtype)
            state["scale"] = torch.ones(1, dtype=torch.float64)
            param -= 0.1 * state["momentum"]


def test_the_precision_of_the_optimizer_state() -> None:
    def body() -> None:
        net = Net()
        optimizer = LowPrecisionMomentum(net.parameters())
        for _ in range(2):
            net(torch.randn(4, 3)).sum().backward()
            optimizer.step()

    first, second = (lines for _, lines in described(body, "model.parameters"))
    assert "layers.*.weight is trainable, in an optimizer" in first
    assert "layers.*.weight is trainable, in an optimizer (state in bfloat16)" in second
    assert "layers.*.bias is trainable, in an optimizer" in second


@pytest.mark.parametrize("scales", [(1.0, 0.5), (1.0, 1.0)])
def test_a_schedule_that_moves_groups_unlike(scales: tuple[float, float]) -> None:
    def body() -> None:
        net = Net()
        layers = [{"params": layer.parameters()} for layer in net.layers]
        rest = [{"params": [param]} for name, param in net.named_parameters() if "layers" not in name]
        optimizer = torch.optim.SGD([*layers, *rest], lr=0.1)
        factors = [*scales, *(1.0 for _ in rest)]
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, [lambda step, x=x: x / (step + 2) for x in factors])
        for _ in range(2):
            net(torch.randn(4, 3)).sum().backward()
            optimizer.step()
            schedule.step()

    for _, lines in described(body, "model.parameters"):
        assert any("lowered by its schedule" in line for line in lines) == (scales[0] != scales[1])


def test_a_model_whose_optimizer_is_gone_is_not_described() -> None:
    def train_twice() -> None:
        first = Net()
        update(first, torch.randn(4, 3))
        gc.collect()
        update(Net(), torch.randn(4, 3))
        del first

    descriptions = described(train_twice, "model.parameters")
    assert descriptions and not any("in no optimizer" in line for _, lines in descriptions for line in lines)


def test_equal_constants_say_nothing() -> None:
    def zeros() -> None:
        net = Net()
        for parameter in net.parameters():
            nn.init.zeros_(parameter)
        update(net, torch.randn(4, 3))

    ((_, lines),) = described(zeros, "model.parameters")
    assert not any("begins" in text for text in lines)


# -- inputs ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (torch.rand(4, 3), "0 to 1"),
        (torch.linspace(-1, 1, 12).reshape(4, 3), "any value"),
        (torch.rand(4, 3) * 255, "no negative value"),
        (torch.linspace(-3, 3, 12).reshape(4, 3), "any value"),
        (torch.zeros(4, 3), "all equal"),
        (torch.full((4, 3), torch.inf), "not finite"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_range_of_an_input_counts_from_the_third_call_on(rows: torch.Tensor, words: str) -> None:
    def train(x: Any) -> Callable[[], object]:
        return lambda: [update(net, x) for net in [Net()] for _ in range(3)]

    for x, name in ((rows, "input 1"), ({"rows": rows}, "input 1[rows]")):
        assert described(train(x), "batch.form") == [
            ("Net", {"with gradients", f"{name} is float32 of 2 dimensions"}),
            ("Net", {"with gradients (values)", f"{name} ranges over {words}"}),
        ]


def test_the_range_is_that_of_all_calls_so_far() -> None:
    def train() -> None:
        net = Net()
        for scale in (-0.5, 300.0, 0.5, 0.5):
            update(net, torch.rand(4, 3) * scale)

    assert described(train, "batch.form")[1:] == [("Net", {"with gradients (values)", "input 1 ranges over any value"})]


def test_a_part_of_a_model_gets_features_which_have_no_range() -> None:
    def train() -> None:
        net = Net()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(4):
            net.layers[1](net.layers[0](torch.rand(4, 3))).sum().backward()
            optimizer.step()

    assert described(train, "batch.form") == [
        (f"Net.layers.{number}", {"with gradients", "input 1 is float32 of 2 dimensions"}) for number in (0, 1)
    ]


def test_few_elements_have_no_range() -> None:
    few = described(lambda: [update(net, torch.rand(2, 3)) for net in [Net()] for _ in range(4)], "batch.form")
    assert few == [("Net", {"with gradients", "input 1 is float32 of 2 dimensions"})]


def test_calls_without_gradients_are_described_apart() -> None:
    def evaluate() -> None:
        net = Net()
        for _ in range(3):
            update(net, torch.rand(4, 3))
        with torch.no_grad():
            net(torch.rand(2, 4, 3))

    assert [lines for _, lines in described(evaluate, "batch.form")][2:] == [
        {"without gradients", "input 1 is float32 of 3 dimensions"}
    ]


# -- checkpoints -----------------------------------------------------------------------------------------------------


def test_the_entries_of_a_checkpoint(tmp_path: Path) -> None:
    def save() -> None:
        net = Net()
        optimizer = update(net, torch.randn(4, 3))
        state = {
            "model": net.state_dict(),
            "optimizer": optimizer.state_dict(),
            "epoch": 3,
            "history": [0.5, 0.25],
            "scaler": {},
        }
        for epoch in range(2):
            torch.save(state, tmp_path / f"epoch-{epoch}.pt")
        torch.save(net, io.BytesIO())

    assert described(save, "checkpoint.entries") == [
        (
            "epoch-*.pt",
            {
                "model.layers.*.bias is float32 of 1 dimension",
                "model.layers.*.weight is float32 of 2 dimensions",
                "model.scale is float32 of 1 dimension",
                "optimizer is the state of an optimizer",
                "epoch is of type int",
                "history.* is of type float",
                "scaler is empty",
            },
        ),
        ("a file in memory", {"the checkpoint is the whole module Net"}),
    ]


# -- passes over the data --------------------------------------------------------------------------------------------


def ends_of_passes(loop: Callable[[DataLoader[Any]], object]) -> list[str]:
    with observing(PASSES | Demand.of_calls("torch.optim.Optimizer.step")) as seen:
        net = nn.Linear(3, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        loader = DataLoader(TensorDataset(torch.randn(12, 3)), batch_size=4)

        def step(batch: list[torch.Tensor]) -> None:
            optimizer.zero_grad()
            net(batch[0]).sum().backward()
            optimizer.step()

        loader.step = step
        loop(loader)
    part = PassEnds()
    return [prop.detail for window in seen.windows for occasion in part.occasions(window) for prop in occasion.held]


def test_a_pass_goes_to_the_end_or_is_left() -> None:
    def epochs(loader: Any) -> None:
        for _ in range(2):
            for batch in loader:
                loader.step(batch)

    def first_batches(loader: Any) -> None:
        for _ in range(3):
            loader.step(next(iter(loader)))

    def counted(loader: Any) -> None:
        """Take all batches without waiting for the end."""
        for _ in range(2):
            for _, batch in zip(range(3), loader, strict=False):
                loader.step(batch)

    def stops_in_the_middle(loader: Any) -> None:
        loader.step(next(iter(loader)))

    assert ends_of_passes(stops_in_the_middle) == []
    assert set(ends_of_passes(epochs)) == {AT_END}
    assert set(ends_of_passes(first_batches)) == {BEFORE_END}
    assert set(ends_of_passes(counted)) == {AT_END}


# -- seeds of ranks --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seeds", "how"), [((7, 7), SAME), ((7, 8), OWN), ((7, 8, 8), SHARED), ((7, None), None)], ids=str
)
def test_seeds_of_ranks(seeds: tuple[int | None, ...], how: str | None) -> None:
    windows = [
        Window(1, 1, "train", rank=rank, readings=(Reading(0, NO_CALL, "run", "run", "seed", seed),) if seed else ())
        for rank, seed in enumerate(seeds)
    ]
    found = [(occasion.subject, prop) for occasion in Seeds().across(windows) for prop in occasion.held]
    assert [prop.detail for _, prop in found] == ([] if how is None else [how])
    assert [Consistent.describe(*pair) for pair in found] == ([] if how is None else [f"the seed is {how}"])


# -- whole runs ------------------------------------------------------------------------------------------------------

CLEAR = "lifecycle torch.optim.Adam.zero_grad < torch.optim.Optimizer.zero_grad receiver=Adam"
STEP = "lifecycle torch.optim.Adam.step < torch.optim.Optimizer.step receiver=Adam"
SCHEDULE = "lifecycle torch.optim.lr_scheduler.StepLR.step < torch.optim.lr_scheduler.LRScheduler.step receiver=StepLR"


def run_of(steps: int, schedules: int, *, ended: bool = True) -> list[Window]:
    """A run whose scheduler makes so many steps, in the first ones."""
    text = "\n".join(
        f"window train step={step}\n  {CLEAR}\n  {STEP}" + (f"\n  {SCHEDULE}" if step <= schedules else "")
        for step in range(1, steps + 1)
    )
    windows = from_text(text)
    role = "live" if ended else "partial"
    end = Reading(0, NO_CALL, "run", "run", "steps", steps, role)
    return [*windows, Window(len(windows), steps, "end", readings=(end,))]


def rules_about_runs(*runs: list[Window]) -> list[Invariant]:
    tallies = []
    for number, windows in enumerate(runs):
        tally, relation = Tally("train.py", "", str(number)), Consistent()
        for window in windows:
            tally.add_window(window)
            tally.add_occasions("Consistent", relation.occasions(window), window.index)
        tallies.append(tally)
    return [rule for rule in select_rules(tallies)[0].invariants if ", in a run of " in rule.subject.grain]


def violated(rules: list[Invariant], windows: list[Window]) -> list[Invariant]:
    """The rules about whole runs that a run violates."""
    relation = Consistent({rule.subject for rule in rules})
    failed = []
    for window in windows:
        for occasion in relation.occasions(window):
            for rule in rules:
                elements = elements_of(rule.property)
                assert elements is not None
                if rule.subject == occasion.subject and not elements.required <= occasion.held:
                    failed.append(rule)
    return failed


def test_a_run_without_what_all_good_runs_did_is_a_violation() -> None:
    rules = [rule for rule in rules_about_runs(run_of(12, 2), run_of(12, 3), run_of(20, 4)) if rule.severity == ERROR]
    assert [rule.subject.grain for rule in rules] == ["order of calls, in a run of 8 to 31 steps"]
    assert violated(rules, run_of(12, 1)) == []
    assert violated(rules, run_of(12, 0)) == rules


@pytest.mark.parametrize(
    "windows",
    [run_of(3, 0), run_of(64, 0), run_of(12, 0, ended=False), run_of(12, 0)[2:]],
    ids=["a short trial", "a much longer run", "an exception", "unwatched steps"],
)
def test_runs_that_say_nothing(windows: list[Window]) -> None:
    rules = rules_about_runs(run_of(12, 2), run_of(12, 3), run_of(20, 4))
    assert violated(rules, windows) == []


def test_ranks_after_the_first_have_rules_of_their_own() -> None:
    rules = rules_about_runs(run_of(12, 2), run_of(12, 3), run_of(20, 4))
    other = [replace(window, rank=1) for window in run_of(12, 0)]
    assert violated(rules, other) == []


def test_no_rule_rests_on_a_single_run() -> None:
    assert rules_about_runs(run_of(12, 2)) == []
    assert rules_about_runs(run_of(12, 2), run_of(200, 2)) == []


def test_what_is_left_to_chance_is_never_needed() -> None:
    """A random box cuts other rows in each run; two of its bounds in all of them are chance."""

    def run(bounds: list[int]) -> list[Window]:
        (window,) = from_text(f"window train step=1\n  {CLEAR}")
        readings = [
            Reading(seq, NO_CALL, "train.cut", "no_grad", "operations", f"torch 2.13\n__getitem__([{bound}:])")
            for seq, bound in enumerate(bounds * 2)
        ]
        end = [
            Reading(100, NO_CALL, "run", "run", "steps", 12),
            Reading(101, NO_CALL, "run", "no_grad", "described_all", True),
        ]
        return [replace(window, readings=(*readings, *end))]

    steady = [rule.subject.grain for rule in rules_about_runs(run([1, 2]), run([1, 2, 3]), run([1, 2, 3]))]
    random = [rule.subject.grain for rule in rules_about_runs(run([1, 2, 4]), run([1, 2, 5]), run([1, 2, 6]))]
    assert any(grain.startswith("train.cut under torch 2.13") for grain in steady)
    assert not any(grain.startswith("train.cut under torch 2.13") for grain in random)


def test_the_readings_at_the_end_of_a_run() -> None:
    with observing(RUNS | Demand.of_calls("torch.optim.Optimizer.step")) as seen:
        update(Net(), torch.randn(4, 3))
    (end,) = [r for window in seen.windows for r in window.readings if r.attribute == "steps"]
    assert (end.value, end.role) == (1, "live")
