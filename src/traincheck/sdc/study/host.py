"""Connect the ranks that execute one model together, and sum tensors over them."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist


class Host:
    """`rank` of `size` ranks. `group` is their process group, None before it is created."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self.group: dist.ProcessGroup | None = None

    def total(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the sum over the ranks, with the same bits on each. Not differentiable: see `spread` and `summed`."""
        result = tensor.detach().clone(memory_format=torch.contiguous_format)
        # By the module, at each call: a fault that is put into collectives hits this one.
        dist.all_reduce(result, group=self.group)
        return result

    def spread(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return `tensor` as the input of each rank's part; its gradient is summed over the ranks."""
        result: torch.Tensor = _Spread.apply(tensor, self)
        return result

    def summed(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the sum of the ranks' parts; its gradient reaches each rank unchanged."""
        result: torch.Tensor = _Summed.apply(tensor, self)
        return result


class _Spread(torch.autograd.Function):  # type: ignore[misc]
    """`f` of Shoeybi et al., "Megatron-LM" (2019), section 3."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, host: Host) -> torch.Tensor:
        ctx.host = host
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return ctx.host.total(gradient), None


class _Summed(torch.autograd.Function):  # type: ignore[misc]
    """`g` of Shoeybi et al., "Megatron-LM" (2019), section 3."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, host: Host) -> torch.Tensor:
        return host.total(tensor)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradient, None
