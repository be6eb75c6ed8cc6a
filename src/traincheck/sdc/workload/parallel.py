"""Split the built-in decoder over the ranks of a host (Shoeybi et al., "Megatron-LM", 2019).

Attention heads and hidden units of the feed-forward are split: by columns where they are computed, by rows where they
are used. Each rank holds the whole embedding, norms and head. Reductions are separate modules. The outputs and input
gradients of attention and feed-forward therefore belong to one rank alone.
"""

from __future__ import annotations

import torch
from torch import nn

from traincheck.sdc.study.host import Host
from traincheck.sdc.workload.decoder import Block, Decoder, DecoderWorkload
from traincheck.sdc.workload.sizes import DecoderConfig, check_divisible

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
    """Distributes its input to the ranks' parts; the gradient is summed over the ranks."""

    def __init__(self, host: Host) -> None:
        super().__init__()
        self.host = host

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.host.spread(x)


class Summed(nn.Module):  # type: ignore[misc]
    """Sums the ranks' parts."""

    def __init__(self, host: Host) -> None:
        super().__init__()
        self.host = host

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.host.summed(x)


class ParallelBlock(Block):
    """A layer with this rank's part of attention and feed-forward."""

    def __init__(self, config: DecoderConfig, host: Host) -> None:
        super().__init__(config, host.size)
        self.attention_spread, self.attention_summed = Spread(host), Summed(host)
        self.feed_forward_spread, self.feed_forward_summed = Spread(host), Summed(host)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention_summed(self.attention(self.attention_spread(self.attention_norm(x))))
        return x + self.feed_forward_summed(self.feed_forward(self.feed_forward_spread(self.feed_forward_norm(x))))


class ParallelDecoderWorkload(DecoderWorkload):
    """One rank's part of the built-in workload. Model and losses equal the unsplit ones of the same seed, except for
    rounding."""

    def __init__(self, config: DecoderConfig, seed: int, device: torch.device, dtype: torch.dtype, host: Host) -> None:
        """Raises BadOption if heads or hidden units cannot be split equally over the ranks."""
        super().__init__(config, seed, device, dtype)
        self.host = host
        check_divisible(config, host.size)

    def empty_model(self) -> nn.Module:
        """Return this rank's part of the model."""
        return Decoder(self.config, lambda config: ParallelBlock(config, self.host))

    def first_value(self, name: str, shape: torch.Size, draws: torch.Generator) -> torch.Tensor:
        """Draw the whole parameter and return this rank's part."""
        dimension = next((dimension for end, dimension in SPLIT.items() if name.endswith(f".{end}")), None)
        if dimension is None:
            return super().first_value(name, shape, draws)
        whole = list(shape)
        whole[dimension] *= self.host.size
        drawn = super().first_value(name, torch.Size(whole), draws)
        return drawn.narrow(dimension, self.host.rank * shape[dimension], shape[dimension])

    def submodules(self, model: nn.Module) -> dict[str, str]:
        """Return the submodules of the decoder, and the reductions, so that their errors are reported as theirs."""
        reductions = {
            name: "reduction" for name, module in model.named_modules() if isinstance(module, (Spread, Summed))
        }
        return {**super().submodules(model), **reductions}
