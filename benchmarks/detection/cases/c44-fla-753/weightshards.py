"""Linear layers whose weights are sharded over the ranks of a data-parallel job, row by row.

Each rank holds, updates and saves its rows only. A forward gathers the weight, and its gradient is averaged over the
ranks and cut. `average_gradients` does the same for all parameters that every rank holds whole.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.autograd.function import once_differentiable


class _Gathered(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows):
        ctx.count = len(rows)
        shards = [torch.empty_like(rows) for _ in range(dist.get_world_size())]
        dist.all_gather(shards, rows.detach())
        return torch.cat(shards)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        grad = grad.contiguous() / dist.get_world_size()
        dist.all_reduce(grad)
        return grad[dist.get_rank() * ctx.count :][: ctx.count].clone()


class ShardedLinear(nn.Module):
    """A linear layer of which each rank holds an equal part of the rows of the weight."""

    def __init__(self, inputs, outputs):
        super().__init__()
        if outputs % dist.get_world_size():
            raise ValueError(f"{outputs} outputs cannot be shared out evenly over {dist.get_world_size()} ranks")
        whole = nn.Linear(inputs, outputs)
        self.weight = shard(whole.weight.detach())
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, x):
        return nn.functional.linear(x, _Gathered.apply(self.weight), self.bias)


def shard(whole):
    """The parameter that holds this rank's rows of a weight that all ranks made alike."""
    parameter = nn.Parameter(whole.chunk(dist.get_world_size())[dist.get_rank()].clone())
    parameter.sharded_from = tuple(whole.shape)
    return parameter


def is_sharded(parameter):
    return hasattr(parameter, "sharded_from")


def average_gradients(model):
    """Average the gradients of what is not sharded, in one transfer."""
    whole = [parameter for parameter in model.parameters() if not is_sharded(parameter)]
    flat = torch.cat([parameter.grad.flatten() for parameter in whole]) / dist.get_world_size()
    dist.all_reduce(flat)
    for parameter, grad in zip(whole, flat.split([parameter.numel() for parameter in whole]), strict=True):
        parameter.grad.copy_(grad.view_as(parameter))
