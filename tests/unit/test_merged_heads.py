"""Attention that merges its heads across positions, and attention that looks like it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from traincheck.sources.gradients.merged_heads import merged_heads, mixes_positions
from trained_programs import errors_of

MERGED = "heads-merged-across-positions"
B, T, H, D = 5, 7, 2, 3
Tensor = torch.Tensor


def split(x: Tensor) -> list[Tensor]:
    """Return (batch, heads, positions, features)."""
    return [part.view(B, T, H, D).transpose(1, 2) for part in x.chunk(3, -1)]


def fused(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, dropout_p=0.1, is_causal=True)


def by_products(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = (q @ k.transpose(-2, -1) / D**0.5).masked_fill(torch.ones(T, T).triu(1) > 0, -torch.inf)
    return F.dropout(scores.softmax(-1), 0.1) @ v


def merged(attention: Callable[..., Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda x: attention(*split(x)).reshape(B, T, H * D)


def merged_into_rows(x: Tensor) -> Tensor:
    return fused(*split(x)).contiguous().view(B * T, H * D)


def transposed(x: Tensor) -> Tensor:
    return by_products(*split(x)).transpose(1, 2).reshape(B, T, H * D)


def transposed_and_fused(x: Tensor) -> Tensor:
    return fused(*split(x)).transpose(1, 2).contiguous().view(B, T, H * D)


def reshaped_both_ways(x: Tensor) -> Tensor:
    q, k, v = (part.reshape(B, H, T, D) for part in x.chunk(3, -1))
    return by_products(q, k, v).reshape(B, T, H * D)


def positions_of_heads_merged(x: Tensor) -> Tensor:
    return fused(*split(x)).reshape(B, H * T, D)


def over_features(x: Tensor) -> Tensor:
    """Attention between channels."""
    q, k, v = (part.transpose(2, 3) for part in split(x))
    return (torch.softmax(q @ k.transpose(-2, -1), -1) @ v).reshape(B, H * D, T)


def all_heads_first(x: Tensor) -> Tensor:
    """As torch does it: (positions, batch x heads, features), with as many heads as positions."""
    q, k, v = (part.transpose(0, 1).reshape(T, B * H, D).transpose(0, 1) for part in x.chunk(3, -1))
    return (torch.softmax(q @ k.transpose(-2, -1), -1) @ v).transpose(0, 1).reshape(T * B, H * D)


def one_head(x: Tensor) -> Tensor:
    q, k, v = (part.view(B, T, 1, H * D).transpose(1, 2) for part in x.chunk(3, -1))
    return fused(q, k, v).reshape(B, T, H * D)


def no_attention(x: Tensor) -> Tensor:
    q, _, _ = split(x)
    return q.reshape(B, T, H * D)


WRONG = [merged(fused), merged(by_products), merged_into_rows]
RIGHT = [
    transposed,
    transposed_and_fused,
    reshaped_both_ways,
    positions_of_heads_merged,
    over_features,
    all_heads_first,
    one_head,
    no_attention,
]


def loss_of(attention: Callable[[Tensor], Tensor], layer: nn.Module, x: Tensor) -> Tensor:
    return attention(layer(x)).square().mean()


@pytest.mark.parametrize("attention", WRONG)
@pytest.mark.parametrize("half", [False, True])
def test_merged_heads(attention: Callable[[Tensor], Tensor], half: bool) -> None:
    layer = nn.Linear(6, 3 * H * D)
    with torch.autocast("cpu", torch.bfloat16, enabled=half):
        (found,) = merged_heads(loss_of(attention, layer, torch.randn(B, T, 6)))
    assert found.before == (B, H, T, D)
    assert any(parameter is layer.weight for parameter in found.parameters)


@pytest.mark.parametrize("attention", RIGHT)
def test_right_ways_to_merge(attention: Callable[[Tensor], Tensor]) -> None:
    assert merged_heads([loss_of(attention, nn.Linear(6, 3 * H * D), torch.randn(B, T, 6))]) == []


def test_the_layers_of_torch() -> None:
    for length in (2, 7):  # as many heads as positions fit both ways
        layer = nn.TransformerEncoderLayer(6, 2, batch_first=length == 7)
        assert merged_heads(layer(torch.randn(4, length, 6)).sum()) == []


@pytest.mark.parametrize(
    ("before", "after", "mixes"),
    [
        ((5, 2, 7, 3), (5, 7, 6), True),
        ((2, 7, 3), (7, 6), True),
        ((5, 2, 7, 3), (35, 6), True),
        ((5, 7, 2, 3), (5, 7, 6), False),
        ((5, 7, 7, 3), (5, 7, 21), False),
        ((5, 1, 7, 3), (5, 7, 3), False),
        ((5, 2, 1, 3), (5, 1, 6), False),
        ((7, 3), (21,), False),
    ],
)
def test_sizes(before: tuple[int, ...], after: tuple[int, ...], mixes: bool) -> None:
    assert mixes_positions(before, after) is mixes


def trained(attention: Callable[[Tensor], Tensor]) -> None:
    layer = nn.Linear(6, 3 * H * D)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    for _ in range(4):
        optimizer.zero_grad()
        loss_of(attention, layer, torch.randn(B, T, 6)).backward()
        optimizer.step()


def test_the_error_is_reported(tmp_path: Path) -> None:
    assert MERGED in errors_of(tmp_path / "wrong", lambda: trained(merged(by_products)))
    assert MERGED not in errors_of(tmp_path / "right", lambda: trained(transposed))
