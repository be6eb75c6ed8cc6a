"""Parallel: the built-in decoder, split over the ranks of a host (Shoeybi et al., "Megatron-LM", 2019).

Heads of attention and hidden numbers of the feed-forward are split: what makes them by columns, what uses them by rows.
Embedding, norms and head are whole on each rank. The reductions are modules of their own, outside of attention and
feed-forward: so what these return, and the gradients of what they are given, are those of one rank alone.
"""

from __future__ import annotations

import torch
from torch import nn

from traincheck.sdc.study.host import Host
from traincheck.sdc.workload.decoder import Block, Decoder, DecoderWorkload
from traincheck.sdc.workload.sizes import DecoderConfig, must_be_divisible

BY_COLUMN, BY_ROW = 0, 1
SPLIT = {
    "attention.query.weight": BY_COLUMN,
    "attention.key.weight": BY_COLUMN,
    "attention.value.weight": BY_COLUMN,
    "attention.out.weight": BY_ROW,
    "feed_forward.gate.weight": BY_COLUMN,
    "feed_forward.up.weight": BY_COLUMN,
    "feed_forward.down.weight": BY_ROW,
}
"""The dimension along which a parameter of a layer is split, by the end of its name. torch has (out, in)."""


class Spread(nn.Module):  # type: ignore[misc]
    """What follows is computed in parts; its gradient is summed over the ranks."""

    def __init__(self, host: Host) -> None:
        super().__init__()
        self.host = host

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.host.spread(x)


class Summed(nn.Module):  # type: ignore[misc]
    """What was computed in parts is summed over the ranks."""

    def __init__(self, host: Host) -> None:
        super().__init__()
        self.host = host

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.host.summed(x)


class ParallelBlock(Block):
    """A layer whose attention and feed-forward are this rank's part of them."""

    def __init__(self, config: DecoderConfig, host: Host) -> None:
        super().__init__(config, host.size)
        self.attention_spread, self.attention_summed = Spread(host), Summed(host)
        self.feed_forward_spread, self.feed_forward_summed = Spread(host), Summed(host)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention_summed(self.attention(self.attention_spread(self.attention_norm(x))))
        return x + self.feed_forward_summed(self.feed_forward(self.feed_forward_spread(self.feed_forward_norm(x))))


class ParallelDecoderWorkload(DecoderWorkload):
    """One rank's part of the built-in workload: the same model and losses from the same seed, but for rounding."""

    def __init__(self, config: DecoderConfig, seed: int, device: torch.device, dtype: torch.dtype, host: Host) -> None:
        """Raises BadOption where heads or hidden numbers cannot be given to the ranks in equal parts."""
        super().__init__(config, seed, device, dtype)
        self.host = host
        must_be_divisible(config, host.size)

    def empty_model(self) -> nn.Module:
        """This rank's part of the model."""
        return Decoder(self.config, lambda config: ParallelBlock(config, self.host))

    def first_value(self, name: str, shape: torch.Size, draws: torch.Generator) -> torch.Tensor:
        """Drawn as a whole, of which this rank takes its part."""
        dimension = next((dimension for end, dimension in SPLIT.items() if name.endswith(f".{end}")), None)
        if dimension is None:
            return super().first_value(name, shape, draws)
        whole = list(shape)
        whole[dimension] *= self.host.size
        drawn = super().first_value(name, torch.Size(whole), draws)
        return drawn.narrow(dimension, self.host.rank * shape[dimension], shape[dimension])

    def submodules(self, model: nn.Module) -> dict[str, str]:
        """Those of the decoder, and the reductions, so that what goes wrong in them is not told of what follows."""
        reductions = {
            name: "reduction" for name, module in model.named_modules() if isinstance(module, (Spread, Summed))
        }
        return {**super().submodules(model), **reductions}
