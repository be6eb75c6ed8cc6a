"""Linear layers that are split over the workers of a tensor-parallel group.

A ColumnParallel layer holds some of the outputs, a RowParallel layer some of the inputs. One after the other they need
one all-reduce in forward and one in backward. Sums are taken in float32.
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn


def summed(tensor):
    """The sum over the group, in the type of the tensor."""
    total = tensor.float()
    dist.all_reduce(total)
    return total.to(tensor.dtype)


class EnterParallel(torch.autograd.Function):
    """The same input for all workers; their input gradients are summed."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return summed(gradient)


class LeaveParallel(torch.autograd.Function):
    """The sum of the partial outputs of all workers."""

    @staticmethod
    def forward(ctx, x):
        return summed(x)

    @staticmethod
    def backward(ctx, gradient):
        return gradient


def is_model_parallel(parameter):
    """Whether each worker holds another part of the parameter; if not, all hold copies of it."""
    return getattr(parameter, "model_parallel", False)


class ParallelLinear(nn.Module):
    """Holds the part `weight` of a full weight (outputs, inputs) that is drawn alike on all workers."""

    def __init__(self, inputs, outputs, split):
        super().__init__()
        full = torch.randn(outputs, inputs) / inputs**0.5
        part = full.chunk(dist.get_world_size(), dim=split)[dist.get_rank()]
        self.weight = nn.Parameter(part.clone())
        self.weight.model_parallel = True


class ColumnParallel(ParallelLinear):
    def __init__(self, inputs, outputs):
        super().__init__(inputs, outputs, split=0)

    def forward(self, x):
        return F.linear(EnterParallel.apply(x), self.weight)


class RowParallel(ParallelLinear):
    def __init__(self, inputs, outputs):
        super().__init__(inputs, outputs, split=1)

    def forward(self, x):
        return LeaveParallel.apply(F.linear(x, self.weight))
