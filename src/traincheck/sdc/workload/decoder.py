"""Decoder: a language model as Llama is (RMSNorm, rotary embedding, SwiGLU, causal attention), with synthetic data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from traincheck.sdc.workload.sizes import DecoderConfig

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, "fp64": torch.float64}


class RMSNorm(nn.Module):  # type: ignore[misc]
    """Divides by the root mean square over the last dimension, computed in fp32 or better; then scales."""

    def __init__(self, width: int, epsilon: float = 1e-5) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.epsilon = epsilon

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        scaled = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.epsilon)
        return self.weight * scaled.to(x.dtype)


def rotated(x: torch.Tensor, base: float) -> torch.Tensor:
    """`x` (batch, heads, length, size) with pairs of its last dimension turned by angles that grow with the place."""
    half = x.shape[-1] // 2
    frequencies = base ** (-torch.arange(half, dtype=torch.float32, device=x.device) / half)
    angles = torch.outer(torch.arange(x.shape[-2], dtype=torch.float32, device=x.device), frequencies)
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    first, second = x[..., :half], x[..., half:]
    return torch.cat((first * cos - second * sin, first * sin + second * cos), dim=-1)


class Attention(nn.Module):  # type: ignore[misc]
    """Causal attention in which several heads of queries share one of keys and values.

    One of `ranks` parts of it has so much fewer heads; what it returns is to be summed over the parts.
    """

    def __init__(self, config: DecoderConfig, ranks: int = 1) -> None:
        super().__init__()
        self.size = config.width // config.heads
        self.groups, self.base = config.heads // config.kv_heads, config.rotary_base
        queries, others = config.heads // ranks * self.size, config.kv_heads // ranks * self.size
        self.query = nn.Linear(config.width, queries, bias=False)
        self.key = nn.Linear(config.width, others, bias=False)
        self.value = nn.Linear(config.width, others, bias=False)
        self.out = nn.Linear(queries, config.width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        def heads(projected: torch.Tensor) -> torch.Tensor:
            return projected.unflatten(-1, (-1, self.size)).transpose(1, 2)

        query, key = rotated(heads(self.query(x)), self.base), rotated(heads(self.key(x)), self.base)
        key = key.repeat_interleave(self.groups, dim=1)
        value = heads(self.value(x)).repeat_interleave(self.groups, dim=1)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        output: torch.Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return output


class FeedForward(nn.Module):  # type: ignore[misc]
    """SwiGLU. One of `ranks` parts of it has so much fewer hidden numbers; what it returns is to be summed."""

    def __init__(self, config: DecoderConfig, ranks: int = 1) -> None:
        super().__init__()
        hidden = config.hidden // ranks
        self.gate = nn.Linear(config.width, hidden, bias=False)
        self.up = nn.Linear(config.width, hidden, bias=False)
        self.down = nn.Linear(hidden, config.width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.down(F.silu(self.gate(x)) * self.up(x))
        return output


class Block(nn.Module):  # type: ignore[misc]
    """A layer: attention and feed-forward, each after a norm, added to the residual stream."""

    def __init__(self, config: DecoderConfig, ranks: int = 1) -> None:
        super().__init__()
        self.attention_norm, self.attention = RMSNorm(config.width), Attention(config, ranks)
        self.feed_forward_norm, self.feed_forward = RMSNorm(config.width), FeedForward(config, ranks)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.attention_norm(x))
        return x + self.feed_forward(self.feed_forward_norm(x))


class Decoder(nn.Module):  # type: ignore[misc]
    """The model: tokens (batch, length) to logits (batch, length, vocabulary). `layer` makes each of its layers."""

    def __init__(self, config: DecoderConfig, layer: Callable[[DecoderConfig], nn.Module] = Block) -> None:
        super().__init__()
        self.embedding = nn.Embedding(config.vocabulary, config.width)
        self.layers = nn.ModuleList(layer(config) for _ in range(config.layers))
        self.norm = RMSNorm(config.width)
        self.head = nn.Linear(config.width, config.vocabulary, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        logits: torch.Tensor = self.head(self.norm(x))
        return logits


SUBMODULES: dict[type, str] = {
    nn.Embedding: "embedding",
    RMSNorm: "norm",
    Attention: "attention",
    FeedForward: "feed-forward",
}
"""What is compared as one, with the name of its kind."""


class DecoderWorkload:
    """The built-in workload: a decoder that learns which token follows which.

    A token is followed by one that depends on it nine times in ten, and by any other else: the loss falls from
    log(vocabulary), and what was learned can be told from what is noise.
    """

    def __init__(self, config: DecoderConfig, seed: int, device: torch.device, dtype: torch.dtype) -> None:
        self.config, self.seed, self.device, self.dtype = config, seed, device, dtype

    def build_model(self) -> nn.Module:
        """Initialised on the CPU, so that it begins as the same on every device."""
        with torch.device("meta"):
            model = self.empty_model().to(self.dtype)
        model = model.to_empty(device=self.device)
        # One by one, and nothing is drawn besides: so a rank that has a part of each draws the same, and never holds
        # the whole model.
        draws = torch.Generator().manual_seed(self.seed)
        for name, parameter in model.named_parameters():
            with torch.no_grad():
                parameter.copy_(self.first_value(name, parameter.shape, draws))
        return model

    def empty_model(self) -> nn.Module:
        """The model, whose parameters have no values yet."""
        return Decoder(self.config)

    def first_value(self, _name: str, shape: torch.Size, draws: torch.Generator) -> torch.Tensor:
        """What a parameter begins with: scales with 1, all else with what is drawn."""
        if len(shape) < 2:
            return torch.ones(shape)
        deviation = 0.02 if self.config.width > 512 else self.config.width**-0.5
        return torch.empty(shape).normal_(std=deviation, generator=draws)

    def build_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """AdamW with a rate that small models bear and large ones survive for the steps of a study."""
        rate = 1e-2 if self.config.width <= 128 else 3e-4
        return torch.optim.AdamW(model.parameters(), lr=rate, betas=(0.9, 0.95), weight_decay=0.1)

    def batch(self, step: int) -> torch.Tensor:
        """Tokens (batch, length + 1), the same for the same step on every device."""
        config = self.config
        draws = torch.Generator().manual_seed(self.seed * 1_000_003 + step)
        shape = (config.length + 1, config.batch)
        noise = torch.randint(config.vocabulary, shape, generator=draws)
        jumps = torch.rand(shape, generator=draws) < 0.1
        rows = [noise[0]]
        for position in range(1, config.length + 1):
            follows = (rows[-1] * 5 + 7) % config.vocabulary
            rows.append(torch.where(jumps[position], noise[position], follows))
        return torch.stack(rows, dim=1).to(self.device)

    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
        """Cross entropy of the next token, in fp32 or better."""
        logits = model(batch[:, :-1]).flatten(0, 1)
        wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
        return F.cross_entropy(wide, batch[:, 1:].flatten())

    def submodules(self, model: nn.Module) -> dict[str, str]:
        """Attention and feed-forward as one each, as published, and what is around them."""
        named = {name: SUBMODULES[type(module)] for name, module in model.named_modules() if type(module) in SUBMODULES}
        return {**named, "head": "head"}
