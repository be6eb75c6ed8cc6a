"""The size of updates and gradients: what is read, and how far from good runs it may be."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import traincheck
from observed_process import observing
from traincheck.checking.offline import check_folder
from traincheck.checking.results import CheckResult
from traincheck.inference.candidate_selection import select_rules
from traincheck.inference.learn import learn
from traincheck.inference.tally import Tally
from traincheck.invariants.book import Book
from traincheck.relations.consistent.bands import BANDS, QUANTITY, Bands
from traincheck.relations.consistent.relation import Consistent
from traincheck.sources.tensors.deferred_values import fetches, simulated_accelerator
from traincheck.sources.tensors.spread_elements import MAX_ELEMENTS
from traincheck.vocab.events import NO_CALL, Reading, Window
from traincheck.vocab.invariant import ERROR, NOTICE, Invariant
from traincheck.vocab.properties import LIES_IN_BAND, STAYS_NEAR_BAND, band_of

Numbers = dict[tuple[str, str], float]


class Net(nn.Module):
    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(2))
        self.head = nn.Linear(width, 1, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def numbers_of(windows: list[Window]) -> dict[int, Numbers]:
    """The numbers that were read, by step, and by quantity and module."""
    by_step: dict[int, Numbers] = {}
    for window in windows:
        for reading in window.readings:
            for line in str(reading.value).split("\n"):
                quantity, size, path = line.split(" ")
                by_step.setdefault(window.step, {})[quantity, path] = float(size)
    return by_step


def read(
    net: nn.Module,
    optimizer: torch.optim.Optimizer,
    steps: int = 1,
    each_step: Callable[[], object] = lambda: None,
    width: int = 4,
    batch: int = 6,
) -> dict[int, Numbers]:
    with observing(BANDS) as seen:
        for _ in range(steps):
            optimizer.zero_grad()
            net(torch.randn(batch, width)).square().mean().backward()
            optimizer.step()
            each_step()
    assert seen.faults == []
    return numbers_of(seen.windows)


# -- what is read ----------------------------------------------------------------------------------------------------


def test_numbers_are_those_of_all_modules_of_a_kind() -> None:
    torch.manual_seed(0)
    net = Net()
    before = [p.detach().clone() for p in net.layers.parameters()]
    (numbers,) = read(net, torch.optim.SGD(net.parameters(), lr=0.1)).values()

    def norm(tensors: list[torch.Tensor]) -> float:
        return math.hypot(*(float(tensor.norm()) for tensor in tensors))

    change = [p.detach() - old for p, old in zip(net.layers.parameters(), before, strict=True)]
    gradients = [p.grad for p in net.parameters() if p.grad is not None]
    assert numbers["update", "layers.*"] == pytest.approx(norm(change) / norm(before), rel=0.01)
    assert numbers["gradient", "layers.*"] == pytest.approx(norm(gradients[:4]) / norm(gradients), rel=0.01)
    assert numbers["nonzero", "layers.*"] == 1.0
    assert numbers["gradient", "head"] == pytest.approx(norm(gradients[4:]) / norm(gradients), rel=0.01)


def test_numbers_are_read_at_the_first_steps_and_then_seldom() -> None:
    net = Net()
    assert list(read(net, torch.optim.SGD(net.parameters(), lr=1e-4), 70)) == [1, 2, 3, 4, 5, 8, 16, 32, 50, 64]


def test_the_update_is_that_at_the_highest_rate() -> None:
    """A schedule moves no number, and an update at a tiny rate is not compared."""
    for lowest, count in ((0.1, 5), (1e-4, 1)):
        torch.manual_seed(0)
        net = Net()
        optimizer = torch.optim.SGD(net.parameters(), lr=1e-5)
        factors = itertools.chain([lowest], itertools.repeat(lowest))
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step, f=factors: 1.0 if not step else next(f))
        sizes = [numbers.get(("update", "head")) for numbers in read(net, optimizer, 5, scheduler.step).values()]
        assert sum(size is not None for size in sizes) == count
        assert sizes[0] is not None
        assert all(size is None or 0.1 < size / sizes[0] < 10 for size in sizes)


def test_an_optimizer_that_continues_another_run_is_left_out() -> None:
    for optimizer_class in (torch.optim.Adam, torch.optim.Adagrad):
        net = Net()
        first, second = (optimizer_class(net.parameters(), lr=0.1) for _ in range(2))
        assert read(net, first)
        second.load_state_dict(first.state_dict())
        assert {quantity for quantity, _ in read(net, second, batch=16)[1]} == {"output"}


def test_outputs_of_modules_with_parameters_are_measured_while_a_model_trains() -> None:
    class Deep(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))
            self.drop = nn.Dropout(0.5)
            self.pair = nn.LSTM(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.layers:
                x = self.drop(layer(x))
            return self.pair(x)[0]  # a module that returns several tensors has no size

    net = Deep()
    for layer in net.layers:
        nn.init.zeros_(layer.weight)
        nn.init.constant_(layer.bias, 3.0)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with observing(BANDS) as seen:
        with torch.no_grad():
            net(torch.randn(16, 4))
        net.eval()
        net(torch.randn(16, 4))
        net.train()
        net(torch.randn(16, 4)).sum().backward()
        net(torch.randn(15, 4))  # too few elements
        optimizer.step()
    numbers = [numbers for numbers in numbers_of(seen.windows).values() if numbers]
    outputs = [{path: size for (quantity, path), size in by.items() if quantity == "output"} for by in numbers]
    assert outputs == [{"layers.*": 3.0}]


def test_large_tensors_are_read_in_part() -> None:
    net = nn.Sequential(nn.Linear(600, 500, bias=False), nn.Linear(500, 1, bias=False))
    sizes = []
    cat = torch.cat

    def counting(tensors: list[torch.Tensor]) -> torch.Tensor:
        sizes.extend(tensor.numel() for tensor in tensors)
        return cat(tensors)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "cat", counting)
        (numbers,) = read(net, torch.optim.SGD(net.parameters(), lr=0.1), width=600).values()
    assert ("update", "*") in numbers
    assert sizes and max(sizes) <= MAX_ELEMENTS


def test_values_on_a_device_are_the_same_and_come_with_the_others() -> None:
    found = []
    for simulate in (False, True):
        torch.manual_seed(0)
        net = Net()
        optimizer = torch.optim.Adam(net.parameters())
        before = fetches.count
        if simulate:
            with simulated_accelerator():
                found.append(read(net, optimizer, 5))
            assert fetches.count - before <= 6  # one for each window
        else:
            found.append(read(net, optimizer, 5))
    assert found[0] == found[1]


def test_odd_parameters_are_left_out() -> None:
    """Sparse gradients, complex numbers and meta tensors have no size here, and no error."""

    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.sparse = nn.Embedding(10, 4, sparse=True)
            self.low = nn.Linear(4, 4).to(torch.bfloat16)
            self.phase = nn.ParameterList([nn.Parameter(torch.ones(4, dtype=torch.complex64))])
            self.turned = nn.Parameter(torch.randn(40, 4).t())

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = x[:, :4] + self.sparse(torch.arange(len(x)))
            x = self.low(x.to(torch.bfloat16)).float()
            return (x @ self.turned) * 1e30 * (self.phase[0].abs().sum())

    net = Odd()
    (numbers,) = read(net, torch.optim.SGD(net.parameters(), lr=1e-30)).values()
    assert {path for quantity, path in numbers if quantity != "output"} <= {"low", "", "phase"}
    assert all(math.isfinite(size) and size > 0 for size in numbers.values())
    assert ("nonzero", "low") in numbers


def test_the_bits_of_a_training_stay_the_same() -> None:
    results = []
    for watched in (False, True):
        torch.manual_seed(0)
        net = Net()
        optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
        if watched:
            read(net, optimizer, 9)
        else:
            for _ in range(9):
                optimizer.zero_grad()
                net(torch.randn(6, 4)).square().mean().backward()
                optimizer.step()
        results.append([p.detach().clone() for p in net.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


# -- occasions and rules ---------------------------------------------------------------------------------------------


def window(step: int, *lines: str, index: int = -1) -> Window:
    reading = Reading(step, NO_CALL, "Net#1", "model", "magnitudes", "\n".join(lines))
    return Window(step if index < 0 else index, step, "train", readings=(reading,))


def test_sizes_are_octaves_within_a_phase() -> None:
    part = Bands()
    found = [
        [(o.subject.grain, prop.detail) for o in part.occasions(window(step, f"update {size} fc")) for prop in o.held]
        for step, size in ((1, "0.002"), (4, "0.3"), (5, "5"), (17, "0"), (400, "nonsense"))
    ]
    at, median = "update of Net.fc at steps {}", "update of Net.fc at steps {}, median of 3"
    assert found == [
        [(at.format("1 to 4"), "1/512")],
        [(at.format("1 to 4"), "1/4")],
        [(at.format("5 to 16"), "4"), (median.format("5 to 16"), "1/4")],
        [],
        [],
    ]


def test_outputs_of_a_run_that_continues_another_one_are_not_compared() -> None:
    assert list(Bands().occasions(window(1, "output 3 fc"))) == []
    both = Bands().occasions(window(1, "output 3 fc", "update 0.5 fc"))
    assert [o.note for o in both] == [
        "here the root mean square of the output of Net.fc is 4",
        "here an update changes Net.fc by 1/2 of its weights",
    ]


def rules(*runs: list[Window]) -> list[Invariant]:
    tallies = []
    for number, windows in enumerate(runs):
        tally, relation = Tally("train.py", "", str(number)), Consistent()
        for one in windows:
            tally.add_window(one)
            tally.add_occasions("Consistent", relation.occasions(one), one.index)
        tallies.append(tally)
    return [rule for rule in select_rules(tallies)[0].invariants if rule.subject.api == QUANTITY]


def run_of(*sizes: float) -> list[Window]:
    return [window(step, f"update {size} fc", index=step - 1) for step, size in enumerate(sizes, 1)]


def test_three_runs_make_a_notice_and_an_error() -> None:
    near, far = sorted(rules(run_of(1, 1, 1), run_of(1, 2, 1), run_of(1, 0.25, 1)), key=lambda rule: rule.property)
    assert (near.property.verb, near.severity) == (LIES_IN_BAND, NOTICE)
    assert (far.property.verb, far.severity) == (STAYS_NEAR_BAND, ERROR)
    assert band_of(near.property) == (-2, 1, 2 + 2)  # without the third run, 1/4 is two octaves outside
    assert band_of(far.property) == (0, 0, 6)
    assert near.sentence == (
        "at steps 1 to 4, an update changes Net.fc by 1/4 to 2 of its weights, or at most 16 times more or less"
    )
    assert far.sentence == (
        "at steps 1 to 4, an update changes Net.fc by 1 of its weights, or at most 64 times more or less"
        " in 3 updates in a row"
    )


def test_two_runs_and_a_wide_range_make_no_rule() -> None:
    assert rules(run_of(1, 1, 1), run_of(1, 1, 1)) == []
    assert rules(*(run_of(1e-4, 1, 1e-4) for _ in range(3)))[0].property.verb == STAYS_NEAR_BAND


# -- whole runs ------------------------------------------------------------------------------------------------------


def train(seed: int, steps: int = 9, batch: int = 16, lr: float = 0.1, weight: float = 1.0) -> None:
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=lr)
    for _ in range(steps):
        x = torch.randn(batch, 4)
        optimizer.zero_grad()
        loss = (net(x) - x.sum(1, keepdim=True)).square().mean()
        (loss * weight).backward()
        optimizer.step()


@pytest.fixture(scope="module")
def book(tmp_path_factory: pytest.TempPathFactory) -> Book:
    folders = [tmp_path_factory.mktemp("good") / "run" for _ in range(3)]
    for seed, folder in enumerate(folders):
        with traincheck.observe(folder):
            train(seed, steps=9 + 4 * (seed == 2))
    return learn(folders).book


@pytest.fixture
def checked(book: Book, tmp_path: Path) -> Callable[..., CheckResult]:
    numbers = itertools.count()

    def run_and_check(**changes: float) -> CheckResult:
        folder = tmp_path / f"run {next(numbers)}"
        with traincheck.observe(folder):
            train(**{"seed": 7, **changes})  # type: ignore[arg-type]
        return check_folder(folder, book)

    return run_and_check


SLUG = "magnitudes-differ-from-good-runs"


def severities(result: CheckResult, book: Book) -> set[str]:
    """The severities of the rules about sizes that failed, whatever leads the finding."""
    failed = [book.by_id(name) for finding in result.report.findings for name in finding.invariants]
    return {rule.severity for rule in failed if rule is not None and rule.subject.api == QUANTITY}


@pytest.mark.parametrize("changes", [{}, {"batch": 8}, {"batch": 64}, {"steps": 20}])
def test_another_run_is_clean(changes: dict[str, float], checked: Callable[..., CheckResult], book: Book) -> None:
    assert severities(checked(**changes), book) == set()


def test_another_rate_is_a_notice(checked: Callable[..., CheckResult], book: Book) -> None:
    assert severities(checked(lr=0.01), book) <= {NOTICE}
    assert severities(checked(lr=0.002), book) == {NOTICE}


def test_a_loss_that_is_scaled_is_an_error(checked: Callable[..., CheckResult]) -> None:
    result = checked(weight=1e-4)
    found = next(f for f in result.report.findings if f.diagnosis == SLUG and f.severity == ERROR)
    assert "; in good runs 1/" in found.observed
    assert found.observed.startswith("here an update changes Sequential.* by 1/")
