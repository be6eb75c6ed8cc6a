"""Three good runs of a program as the reference: what changes the computation is an error, what people tune is not."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import traincheck
from torch_version import reports_graph_details
from traincheck.checking.offline import check_folder
from traincheck.checking.results import CheckResult
from traincheck.inference.accept_run import accept
from traincheck.inference.learn import learn
from traincheck.invariants.book import Book
from traincheck.invariants.diff import changed_sets
from traincheck.vocab.properties import elements_of

Rows = torch.Tensor


class Attention(nn.Module):
    def __init__(self, width: int, masked: bool = True) -> None:
        super().__init__()
        self._masked = masked  # a private attribute is not described
        self.project = nn.Linear(width, width)

    def forward(self, x: Rows) -> Rows:
        scores = x @ x.transpose(-2, -1) / x.shape[-1] ** 0.5
        if self._masked:
            scores = scores.masked_fill(torch.ones_like(scores[0], dtype=torch.bool).triu(1), -torch.inf)
        return x + self.project(scores.softmax(-1) @ x)


class Net(nn.Module):
    def __init__(self, width: int = 8, depth: int = 3) -> None:
        super().__init__()
        self.enter = nn.Linear(4, width)
        self.enter.scheme = "plain"  # type: ignore[assignment]
        self.layers = nn.ModuleList(Attention(width) for _ in range(depth))
        self.leave = nn.Linear(width, 3)

    def forward(self, x: Rows) -> Rows:
        x = self.enter(x)
        self.mean = float(x.detach().mean())
        for layer in self.layers:
            x = layer(x)
        return self.leave(x.mean(1))


def loss_of(logits: Rows, labels: Rows) -> Rows:
    return F.cross_entropy(logits, labels) + 0.01 * logits.square().mean()


def train(
    seed: int = 0,
    steps: int = 6,
    batch: int = 6,
    width: int = 8,
    depth: int = 3,
    lr: float = 0.01,
    decay: float = 0.01,
    change: Callable[[Net], object] = lambda net: None,
    loss: Callable[[Rows, Rows], Rows] = loss_of,
    optimized: Callable[[Net, float], list[dict[str, Any]]] = lambda net, decay: [
        {"params": [p for p in net.parameters() if p.dim() > 1], "weight_decay": decay},
        {"params": [p for p in net.parameters() if p.dim() < 2], "weight_decay": 0.0},
    ],
    without: str = "",
    horizon: int = 100,
) -> None:
    torch.manual_seed(seed)
    net = Net(width, depth)
    change(net)
    optimizer = torch.optim.AdamW(optimized(net, decay), lr=lr)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=horizon)
    for step in range(steps):
        x = torch.randn(batch, 5, 4)
        optimizer.zero_grad()
        loss(net(x), (x.sum((1, 2)) > 0).long()).backward()
        if without != "clipping":
            torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        if without != "schedule":
            scheduler.step()
        if step % 4 == 3:
            if without != "eval":
                net.eval()
            with torch.no_grad():
                net(x)
            net.train()


@pytest.fixture(scope="module")
def book(tmp_path_factory: pytest.TempPathFactory) -> Book:
    """What three good runs show, one of them longer."""
    folders = [tmp_path_factory.mktemp("good") / "run" for _ in range(3)]
    for seed, folder in enumerate(folders):
        with traincheck.observe(folder):
            train(seed, steps=6 + 3 * (seed == 2))
    return learn(folders).book


@pytest.fixture
def checked(book: Book, tmp_path: Path) -> Callable[..., CheckResult]:
    numbers = itertools.count()

    def run_and_check(**changes: object) -> CheckResult:
        folder = tmp_path / f"run {next(numbers)}"
        with traincheck.observe(folder):
            train(**{"seed": 7, **changes})  # type: ignore[arg-type]
        return check_folder(folder, book)

    return run_and_check


def findings(result: CheckResult) -> list[tuple[str, str]]:
    return [(finding.severity, finding.diagnosis) for finding in result.report.findings]


@pytest.mark.parametrize(
    "changes", [{"steps": 20}, {"batch": 3}, {"batch": 1}, {"width": 16}, {"depth": 5}, {"lr": 0.1}]
)
def test_what_people_tune_is_no_error(changes: dict[str, object], checked: Callable[..., CheckResult]) -> None:
    assert [severity for severity, _ in findings(checked(**changes)) if severity == "error"] == []


def test_a_lost_weight_decay_is_an_error(checked: Callable[..., CheckResult]) -> None:
    (finding,) = checked(decay=0.0).report.findings
    assert finding.severity == "error" and "not decayed" in finding.observed


def test_tallies_judge_the_same(book: Book, tmp_path: Path) -> None:
    """A benchmark and `accept` judge rules by counts alone."""
    broken = []
    for name, change in (("same", lambda net: None), ("other", mask_off)):
        with traincheck.observe(tmp_path / name):
            train(seed=7, change=change)
        (tally,) = learn([tmp_path / name]).tallies
        sets = [rule for rule in book.invariants if elements_of(rule.property)]
        counts = [(rule, tally.evidence((rule.relation, rule.subject), rule.property)) for rule in sets]
        failed = [rule for rule, rows in counts if any(count.failed for _, count in rows)]
        broken.append({rule.subject.grain.partition(" under ")[0] for rule in failed})
    assert broken == [set(), {"Net.layers.*", "test_own_computation.Attention.forward (eval)"}]


def mask_off(net: Net) -> None:
    net.layers[1]._masked = False


def freeze(net: Net) -> None:
    net.leave.weight.requires_grad_(False)


def test_the_layer_without_a_mask_is_named(checked: Callable[..., CheckResult]) -> None:
    (finding,) = [f for f in checked(change=mask_off).report.findings if f.diagnosis == "computation-differs"]
    assert finding.severity == "error" and finding.step == 1
    assert "here softmax(dim=-1) <- div; in good runs softmax(dim=-1) <- masked_fill" in finding.observed
    assert finding.variables == ("Net.layers.1",)


@pytest.mark.parametrize(
    ("loss", "line"),
    [
        (lambda x, y: F.cross_entropy(x, y), "here loss <- nll_loss; in good runs loss <- add"),
        (
            lambda x, y: loss_of(x.tanh(), y),
            "here log_softmax(dim=1) <- tanh; in good runs log_softmax(dim=1) <- leave",
        ),
        pytest.param(
            lambda x, y: F.cross_entropy(x, y) + 0.1 * x.square().mean(),
            "here 0.1; in good runs 0.01",
            marks=pytest.mark.skipif(not reports_graph_details(), reason="this torch reports no numbers"),
        ),
        (
            lambda x, y: F.cross_entropy(x, y) - 0.01 * x.square().mean(),
            "here sub <- nll_loss, mul; in good runs add <- nll_loss, mul",
        ),
    ],
)
def test_another_loss(loss: Callable[[Rows, Rows], Rows], line: str, checked: Callable[..., CheckResult]) -> None:
    (finding,) = [f for f in checked(loss=loss).report.findings if f.diagnosis == "computation-differs"]
    assert line in finding.observed


def test_another_attribute_of_a_module_is_an_error(checked: Callable[..., CheckResult]) -> None:
    """A number that the model computes while it trains is no attribute in this sense."""
    (finding,) = [f for f in checked(change=rename).report.findings if f.diagnosis == "module-differs"]
    assert finding.severity == "error"
    assert "here enter is Linear(scheme=other); in good runs enter is Linear(scheme=plain)" in finding.observed


def rename(net: Net) -> None:
    net.enter.scheme = "other"  # type: ignore[assignment]


@pytest.mark.parametrize(
    "optimized",
    [
        lambda net, decay: [{"params": net.parameters(), "weight_decay": decay}],
        lambda net, decay: [{"params": net.leave.parameters(), "weight_decay": decay}],
    ],
    ids=["decay for all", "only one part"],
)
def test_other_groups_are_an_error(optimized: object, checked: Callable[..., CheckResult]) -> None:
    found = [f for f in checked(optimized=optimized).report.findings if f.diagnosis == "parameters-treated-differently"]
    assert [finding.severity for finding in found] == ["error"]
    assert "here " in found[0].observed and "in good runs " in found[0].observed


def test_a_frozen_or_shared_parameter_is_treated_differently(checked: Callable[..., CheckResult]) -> None:
    (finding,) = checked(change=freeze).report.findings
    assert finding.severity == "error" and "here leave.weight is frozen, in an optimizer" in finding.observed
    assert ("error", "parameters-treated-differently") in findings(checked(change=share))


def share(net: Net) -> None:
    net.layers[1] = net.layers[0]


def test_a_schedule_that_ends_too_early_is_an_error(checked: Callable[..., CheckResult]) -> None:
    (finding,) = checked(horizon=3).report.findings
    assert (finding.severity, finding.step, finding.diagnosis) == ("error", 5, "rate-takes-new-course")
    assert "here the rate stays; in good runs the rate rises" in finding.observed


@pytest.mark.parametrize("call", ["clipping", "schedule", "eval"])
def test_a_missing_call_is_an_error(call: str, checked: Callable[..., CheckResult]) -> None:
    found = [f for f in checked(without=call).report.findings if f.diagnosis == "calls-follow-in-new-order"]
    assert [finding.severity for finding in found] == ["error"]


def test_an_intended_change_is_settled_by_one_acceptance(tmp_path: Path) -> None:
    """What is new in a run that was accepted for a reason is known from then on, and nothing else is."""

    def recorded(name: str, **changes: object) -> Path:
        with traincheck.observe(tmp_path / name):
            train(**{"seed": len(name), **changes})  # type: ignore[arg-type]
        return tmp_path / name

    accept([recorded(name) for name in ("a", "bb", "ccc")], tmp_path / "library", reason="as published")
    without_mask = recorded("dddd", change=mask_off)
    acceptance = accept([without_mask], tmp_path / "library", reason="no mask any more", changed={without_mask})
    changed = {
        entry.before.subject.grain.partition(" under ")[0]: entry for entry in changed_sets(acceptance.difference)
    }
    assert "softmax(dim=-1) <- div" in changed["Net.layers.*"].new
    again = check_folder(recorded("eeeee", change=mask_off), acceptance.book)
    assert [finding.diagnosis for finding in again.report.findings] == []
    frozen = check_folder(recorded("ffffff", change=freeze), acceptance.book)
    assert ("error", "parameters-treated-differently") in findings(frozen)
