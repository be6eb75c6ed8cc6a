"""Runs with other names, other layouts of parameters, and other numbers of micro-batches are compared by meaning."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from recorded_operations import compare_one_rank, recorded
from traincheck.comparison.difference import DIFFERENT, ROUNDING, SAME
from traincheck.comparison.run_comparison import Comparison
from traincheck.vocab.operations import ACCUMULATED, StepOperations

WIDTH = 8


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def projected(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(self.qkv(x).split(WIDTH, dim=-1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.projected(x)
        return self.out((q @ k.transpose(-1, -2)).softmax(-1) @ v)


class Split(Attention):
    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        weights, biases = self.qkv.weight.split(WIDTH), self.qkv.bias.split(WIDTH)
        with torch.no_grad():
            for own, weight, bias in zip((self.q, self.k, self.v), weights, biases, strict=True):
                own.weight.copy_(weight)
                own.bias.copy_(bias)
        del self.qkv

    def projected(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return self.q(x), self.k(x), self.v(x)


class Swapped(Split):
    def projected(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return self.q(x), self.v(x), self.k(x)


class Transposed(nn.Module):
    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.weight = nn.Parameter(linear.weight.detach().t().contiguous())
        self.bias = linear.bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight + self.bias


class Net(nn.Module):
    def __init__(self, attention: Callable[[], nn.Module] = Attention) -> None:
        super().__init__()
        self.norm, self.attention, self.head = nn.LayerNorm(WIDTH), attention(), nn.Linear(WIDTH, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(x + self.attention(self.norm(x)))


class Renamed(nn.Module):
    """The same model with other names."""

    def __init__(self, twice: bool = False) -> None:
        super().__init__()
        inner = Net()
        self.twice, self.ln, self.attn, self.lm_head = twice, inner.norm, inner.attention, inner.head

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        attended = self.attn(self.ln(x))
        return self.lm_head(x + attended + attended if self.twice else x + attended)


def with_transposed() -> nn.Module:
    net = Net()
    net.head = Transposed(net.head)  # type: ignore[assignment]
    net.attention.out = Transposed(net.attention.out)  # type: ignore[assignment, arg-type]
    return net


def run(
    make: Callable[[], nn.Module] = Net, micro_batches: int = 1, divisor: int | None = None
) -> list[StepOperations]:
    torch.manual_seed(0)
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    steps: list[StepOperations] = []
    with recorded(steps):
        for seed in range(2):
            batch = torch.randn(8, 4, WIDTH, generator=torch.Generator().manual_seed(seed))
            optimizer.zero_grad()
            for part in batch.chunk(micro_batches):
                loss = F.mse_loss(model(part), torch.zeros(len(part), 4, 5))
                (loss / (divisor or micro_batches)).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
    return steps


def first_origin(comparison: Comparison) -> tuple[int, str, set[str]]:
    """Step and module of the first origin, and the names of its operations."""
    assert comparison.result == DIFFERENT
    origin = comparison.origins[0]
    operations = (origin.a, origin.b, *origin.others_a, *origin.others_b)
    return origin.step, origin.operation.module, {each.name for each in operations if each is not None}


@pytest.mark.parametrize(
    ("make", "renamed"),
    [
        (lambda: Net(Split), {"Net.attention.q.weight, Net.attention.k.weight, Net.attention.v.weight"}),
        (with_transposed, {"Net.attention.out.weight"}),
        (Renamed, {"Renamed", "Renamed.ln.weight", "Renamed.attn.qkv.bias", "Renamed.lm_head.weight"}),
    ],
)
def test_ports_that_compute_the_same_are_equal(make: Callable[[], nn.Module], renamed: set[str]) -> None:
    for comparison in (compare_one_rank(run(), run(make)), compare_one_rank(run(make), run())):
        assert comparison.result in (SAME, ROUNDING), first_origin(comparison)
        assert len(comparison.steps) == 2
    assert renamed <= set(compare_one_rank(run(), run(make)).renamed)


def test_split_weights_in_another_order_are_named() -> None:
    step, module, names = first_origin(compare_one_rank(run(lambda: Net(Split)), run(lambda: Net(Swapped))))
    assert (step, module) == (1, "Net.attention") and "bmm" in names
    step, module, _ = first_origin(compare_one_rank(run(), run(lambda: Net(Swapped))))
    assert (step, module) == (1, "Net.attention")


def test_an_operation_of_a_renamed_model_is_named() -> None:
    assert first_origin(compare_one_rank(run(), run(lambda: Renamed(twice=True))))[:2] == (1, "Renamed")


def test_micro_batches_are_joined() -> None:
    for comparison in (compare_one_rank(run(), run(micro_batches=4)), compare_one_rank(run(micro_batches=2), run())):
        assert comparison.result == ROUNDING, first_origin(comparison)
        assert len(comparison.steps) == 2


def test_a_gradient_of_micro_batches_that_is_not_averaged_is_named() -> None:
    comparison = compare_one_rank(run(), run(micro_batches=4, divisor=1))
    step, _, names = first_origin(comparison)
    assert step == 1 and names == {ACCUMULATED}
    assert "gradients" in {origin.kind for origin in comparison.origins}
