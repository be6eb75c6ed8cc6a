"""Host: the ranks that execute one model together, each a part of it, and how they sum what they have."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist


class Host:
    """`rank` of `size` ranks. `group` is their process group, None until they have met."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self.group: dist.ProcessGroup | None = None

    def total(self, tensor: torch.Tensor) -> torch.Tensor:
        """The sum over the ranks, the same bits on each of them. Not differentiable, see `spread` and `summed`."""
        result = tensor.detach().clone(memory_format=torch.contiguous_format)
        # By the module, at each call: a fault that is put into collectives hits this one.
        dist.all_reduce(result, group=self.group)
        return result

    def spread(self, tensor: torch.Tensor) -> torch.Tensor:
        """What each rank has as a whole, for each to compute its part from: its gradient is the sum over the ranks."""
        result: torch.Tensor = _Spread.apply(tensor, self)
        return result

    def summed(self, tensor: torch.Tensor) -> torch.Tensor:
        """The sum of what each rank has computed as its part; the gradient goes to each of them as it is."""
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
    """`g` of the same."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, host: Host) -> torch.Tensor:
        return host.total(tensor)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradient, None
