"""Two modulated layer norms around an addition, compiled to one forward and one backward.

    norms = compile_sandwich(width)
    y = norms(x, between, table)

computes, without keeping what lies between in memory,

    h = norm(x) * (1 + table[1]) + table[0]
    y = norm(h + between) * (1 + table[3]) + table[2]
"""

import torch
from torch.autograd.function import once_differentiable

BLOCK = 64
"""Rows that are reduced together before the sums of the blocks are."""
EPS = 1e-6


def _normalise(x):
    centred = x - x.mean(dim=1, keepdim=True)
    inverse = torch.rsqrt(centred.square().mean(dim=1, keepdim=True) + EPS)
    return centred * inverse, inverse


def _norm_backward(grad, normed, inverse):
    along = normed * (grad * normed).mean(dim=1, keepdim=True)
    return inverse * (grad - grad.mean(dim=1, keepdim=True) - along)


def _reduce(values, region):
    """Sum over rows in one go, into a region of the gradient buffer, which is returned."""
    return torch.sum(values, dim=0, out=region)


def _reduce_blocks(values, region):
    """Sum over rows by blocks: their sums go to a workspace, the sum of those to a region of the gradient buffer."""
    workspace = torch.stack([block.sum(dim=0) for block in values.split(BLOCK)])
    region = workspace.sum(dim=0)
    return region


class _Sandwich(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, between, table, plan):
        inner, inner_inverse = _normalise(x)
        outer, outer_inverse = _normalise(torch.addcmul(table[0], inner, 1 + table[1]) + between)
        ctx.save_for_backward(inner, inner_inverse, outer, outer_inverse, table)
        ctx.plan = plan
        return torch.addcmul(table[2], outer, 1 + table[3])

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        inner, inner_inverse, outer, outer_inverse, table = ctx.saved_tensors
        shift_in, scale_in, shift_out, scale_out = ctx.plan.unbind(0)
        # The outer norm is reduced along rows and columns in one pass, hence by blocks.
        _reduce_blocks(grad, shift_out)
        _reduce_blocks(grad * outer, scale_out)
        between = _norm_backward(grad * (1 + table[3]), outer, outer_inverse)
        _reduce(between, shift_in)
        _reduce(between * inner, scale_in)
        x = _norm_backward(between * (1 + table[1]), inner, inner_inverse)
        return x, between, ctx.plan.clone(), None


def compile_sandwich(width):
    """The compiled function for rows of a width. The buffer for the gradient of the table is planned here, once."""
    plan = torch.zeros(4, width)

    def run(x, between, table):
        return _Sandwich.apply(x, between, table, plan)

    return run
