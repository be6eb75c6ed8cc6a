"""Tests the experiment `accumulation`, and how it reads the weights of a loss from its graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from traincheck.sources.verification.accumulation.loss_weights import weights_of
from traincheck.vocab.verification import ACCUMULATION, AGREES, DISAGREES, UNDECIDED
from verified_runs import VerifiedRun, verified

pytestmark = pytest.mark.skipif(
    not hasattr(torch._C._autograd.SavedTensor, "unpack_hook"), reason="this torch does not show hooks of saved tensors"
)

torch.manual_seed(0)
X = torch.randn(4, 3, requires_grad=True)
LABELS = torch.tensor([0, -100, 1, 2])
SCALE = torch.tensor(1024.0)

Loss = Callable[[], torch.Tensor]


@pytest.mark.parametrize(
    ("loss", "elements", "weight"),
    [
        (lambda: F.cross_entropy(X, LABELS), 3, 1 / 3),
        (lambda: F.cross_entropy(X, LABELS) / 4, 3, 1 / 12),
        (lambda: 0.5 * F.cross_entropy(X, LABELS) * SCALE, 3, 512 / 3),
        (lambda: F.cross_entropy(X, LABELS, reduction="sum") / (LABELS >= 0).sum(), 3, 1 / 3),
        (lambda: F.mse_loss(X, torch.zeros(4, 3)), 12, 1 / 12),
        (lambda: X.abs().mean().double(), 12, 1 / 12),
        (lambda: X.square().sum() / 6, 12, 1 / 6),
        (lambda: F.binary_cross_entropy_with_logits(X, torch.ones(4, 3), reduction="none").mean(), 12, 1 / 12),
    ],
)
def test_weights_of_a_loss(loss: Loss, elements: float, weight: float) -> None:
    weights = weights_of(loss())
    assert weights is not None
    assert (weights.elements, weights.weight) == pytest.approx((elements, weight))


@pytest.mark.parametrize(
    "loss",
    [
        lambda: F.cross_entropy(X, LABELS, label_smoothing=0.1),
        lambda: X.mean(1).mean() + X.mean(),
        lambda: 1 / X.square().mean(),
        lambda: X.mean() * X.sum(),
    ],
)
def test_what_the_graph_does_not_show(loss: Loss) -> None:
    assert weights_of(loss()) is None


def test_a_freed_graph_is_not_read() -> None:
    loss = F.cross_entropy(X, LABELS) / 4
    loss.backward()
    assert weights_of(loss) is None


def test_saved_tensors_are_not_unpacked() -> None:
    unpacked: list[torch.Tensor] = []

    def unpack(tensor: torch.Tensor) -> torch.Tensor:
        unpacked.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, unpack):
        loss = F.cross_entropy(X, LABELS)
    assert weights_of(loss) is None and unpacked == []


MASKED = [8, 5, 2]


def training(loss: Callable[[torch.Tensor, torch.Tensor, int], torch.Tensor], counts: list[int]) -> Iterator[None]:
    """A loop that accumulates micro-batches with these numbers of labels that count."""
    model = nn.Linear(5, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(4):
        optimizer.zero_grad()
        for count in counts:
            labels = torch.cat((torch.randint(0, 3, (count,)), torch.full((10 - count,), -100)))
            loss(model(torch.randn(10, 5)), labels, sum(counts)).backward()
        optimizer.step()
        yield


def mean(output: torch.Tensor, labels: torch.Tensor, total: int) -> torch.Tensor:
    return F.cross_entropy(output, labels) / 3


def by_token(output: torch.Tensor, labels: torch.Tensor, total: int) -> torch.Tensor:
    return F.cross_entropy(output, labels, reduction="sum") / total


def smooth(output: torch.Tensor, labels: torch.Tensor, total: int) -> torch.Tensor:
    return F.cross_entropy(output, labels, label_smoothing=0.1) / 3


def run(folder: Path, steps: Iterator[None]) -> VerifiedRun:
    result = verified(folder, steps)
    assert result.findings == [], "a fact about a program is no finding without a rule"
    return result


def test_tokens_that_weigh_the_same(tmp_path: Path) -> None:
    result = run(tmp_path, training(by_token, MASKED))
    assert result.of(ACCUMULATION.name) == [AGREES, AGREES]


def test_means_over_different_numbers_of_tokens(tmp_path: Path) -> None:
    result = run(tmp_path, training(mean, MASKED))
    assert result.of(ACCUMULATION.name) == [DISAGREES, DISAGREES]
    verdict = result.first(ACCUMULATION.name)
    assert verdict.subject == "SGD"
    assert verdict.found == (
        "in step 2, an element of a micro-batch of 2 weighs 4 times as much as one of a micro-batch of 8"
    )


@pytest.mark.parametrize(
    ("loss", "counts", "reason"),
    [(mean, [6, 6], "all of its micro-batches have the same number"), (smooth, MASKED, "the graphs of its losses")],
)
def test_what_is_not_decided(
    loss: Callable[[torch.Tensor, torch.Tensor, int], torch.Tensor], counts: list[int], reason: str, tmp_path: Path
) -> None:
    result = run(tmp_path, training(loss, counts))
    assert result.of(ACCUMULATION.name) == [UNDECIDED]  # once for each reason
    assert result.first(ACCUMULATION.name).found.startswith(reason)


def test_losses_of_different_lines_are_not_compared(tmp_path: Path) -> None:
    def steps() -> Iterator[None]:
        model = nn.Linear(5, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(4):
            optimizer.zero_grad()
            model(torch.randn(8, 5)).square().mean().backward()
            model(torch.randn(2, 5)).square().mean().backward()
            optimizer.step()
            yield

    assert ACCUMULATION.name not in run(tmp_path, steps()).verdicts
